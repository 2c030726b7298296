"""What a front end's observer hears, for the engine's: one place counts and logs. Sans-IO."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import orjson

from app.frontends.wire import WireError
from app.tracing.far import FarTrace
from scheduler.errors import Code
from scheduler.observer import Answered
from scheduler.types import Timing

# A client chooses how long these are.
_MAX_TEXT_CHARACTERS = 2048
_TEXT, _NUMBERS = {str}, {int, float}


@dataclass(frozen=True, slots=True)
class Keyed:
    """A request by the name of its API key, and what became of it."""

    key: str
    outcome: str


Record: TypeAlias = Answered | Keyed


def encode_records(records: Iterable[Record]) -> bytes:
    """Return ``records`` but for their traces, which stay where they are made."""
    fields = list(map(_fields, records))
    try:
        return orjson.dumps(fields)
    except TypeError:  # a surrogate in what a client calls itself, or an integer of 65 bits
        return orjson.dumps([[_harmless(one) for one in record] for record in fields])


def decode_records(payload: bytes) -> Iterator[Record]:
    """Yield the records in ``payload``. Raises WireError."""
    try:
        for fields in orjson.loads(payload):
            yield _keyed(*fields) if len(fields) == 2 else _answered(*fields)
    except (ValueError, TypeError) as error:
        raise WireError(f"records that are none: {error}") from error


def _fields(record: Record) -> tuple[Any, ...]:
    if isinstance(record, Keyed):
        return record.key, record.outcome
    return (
        record.transport, record.model, record.rows, record.code and record.code.value,
        record.duration_s, record.request_id, record.detail[:_MAX_TEXT_CHARACTERS],
        record.version, record.trace_id,
        record.trace.span_id if record.trace else "",
        record.operation[:_MAX_TEXT_CHARACTERS], record.protocol,
        record.http_status, record.bytes_in, record.bytes_out,
        record.timing and record.timing.numbers,
    )  # fmt: skip


def _keyed(key: str, outcome: str) -> Keyed:
    if type(key) is not str or type(outcome) is not str:
        raise TypeError("a text is none")
    return Keyed(key, outcome)


def _answered(
    transport: str, model: str, rows: int, code: str | None, duration_s: float, *more: Any
) -> Answered:
    name, detail, version, trace_id, span_id, operation, protocol, *numbers, timing = more
    texts = (transport, model, name, detail, version, trace_id, span_id, operation, protocol)
    if {*map(type, texts)} != _TEXT:
        raise TypeError("a text is none")
    http_status, bytes_in, bytes_out = map(int, numbers)
    return Answered(
        transport, model, int(rows), None if code is None else Code(code), float(duration_s),
        name, detail, version, trace_id, FarTrace(trace_id, span_id) if span_id else None,
        operation, protocol,
        http_status, bytes_in, bytes_out,
        None if timing is None else _timing(timing),
    )  # fmt: skip


def _timing(numbers: list[Any]) -> Timing:
    if not _NUMBERS.issuperset(map(type, numbers)):
        raise TypeError("a number is none")
    return Timing(*numbers)


def _harmless(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return min(value, 2**63 - 1) if isinstance(value, int) else value
