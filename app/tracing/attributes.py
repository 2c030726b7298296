"""What spans say, in the words of OpenTelemetry's semantic conventions (1.43) and our own."""

import re
from collections.abc import Mapping

from scheduler.errors import Code
from scheduler.observer import Answered, Computed
from transports.status import STATUS

Attributes = Mapping[str, str | int]

# Of gRPC's statuses, those that the conventions have a server report as errors.
_GRPC_ERRORS = {
    "UNKNOWN",
    "DEADLINE_EXCEEDED",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
}
_NAMED = re.compile(r"/(model|version)s/[^/]+")


def span_name(record: Answered) -> str:
    """Return the name of a request's span: of few values, whatever clients ask for."""
    return record.operation if record.transport == "grpc" else _route(record.operation)


def of_request(record: Answered) -> Attributes:
    """Return what a request's span says."""
    common: dict[str, str | int] = {
        "narsil.transport": record.transport,
        "narsil.model": record.model,
        "narsil.version": record.version,
        "narsil.rows": record.rows,
        "narsil.request_id": record.request_id,
        "narsil.code": record.code.value if record.code else "ok",
    }
    if record.timing is not None:
        common["narsil.batch_rows"] = record.timing.batch_rows
    wire = _of_wire(record)
    error = {"error.type": record.code.value} if record.code and is_error(record) else {}
    return {**common, **wire, **error}


def is_error(record: Answered) -> bool:
    """Return whether the server is to blame, as the conventions see it."""
    if record.transport == "grpc":
        return _grpc_status(record.code) in _GRPC_ERRORS
    return _http_status(record) >= 500


def of_batch(record: Computed) -> Attributes:
    """Return what a batch's span says."""
    return {
        "narsil.model": record.model,
        "narsil.version": record.version,
        "narsil.batch_rows": record.rows,
        "narsil.batch_ids": record.ids,
        "narsil.batch_requests": len(record.queue_s),
        "narsil.lane": record.lane,
    }


def _of_wire(record: Answered) -> Attributes:
    if record.transport == "grpc":
        return _of_grpc(record)
    return _of_http(record) if record.protocol else {}  # the conventions know no other wire


def _of_grpc(record: Answered) -> Attributes:
    return {
        "rpc.system.name": "grpc",
        "rpc.method": record.operation,
        "rpc.response.status_code": _grpc_status(record.code),
    }


def _of_http(record: Answered) -> Attributes:
    method, _, path = record.operation.partition(" ")
    return {
        "http.request.method": method,
        "http.route": _route(path),
        "url.path": path,
        "http.response.status_code": _http_status(record),
        "network.protocol.name": "http",
        "network.protocol.version": record.protocol,
        "network.transport": "quic" if record.protocol == "3" else "tcp",
    }


def _route(path: str) -> str:
    return _NAMED.sub(r"/\1s/{\1}", path)


def _grpc_status(code: Code | None) -> str:
    return str(STATUS[code].grpc.name) if code else "OK"


def _http_status(record: Answered) -> int:
    if record.http_status:
        return record.http_status
    return STATUS[record.code].http if record.code else 200
