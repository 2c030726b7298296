"""What the headers of an inference request say, checked."""

import math
import re
import secrets
from collections.abc import Mapping
from http import HTTPStatus

from scheduler.errors import invalid
from scheduler.observer import Observer
from scheduler.often import often_made
from scheduler.types import Trace
from transports.http.coding import accepted_coding, content_coding
from transports.http.problem import HttpError
from transports.trace import TRACEPARENT, TRACESTATE, trace_id

JSON = "application/json"
PROTOBUF = "application/x-protobuf"

MAX_REQUEST_ID_CHARACTERS = 128
_TRACEPARENT, _TRACESTATE = TRACEPARENT.encode(), TRACESTATE.encode()
# Not all that float() takes: no exponent, sign, space, underscore or "nan".
_DECIMAL = re.compile(rb"[0-9]{1,15}(\.[0-9]{1,15})?")
_WHOLE = re.compile(rb"[0-9]{1,9}")
_LENGTH = re.compile(rb"[0-9]{1,20}")  # any 64-bit number: too long a body is another error
_NOT_IN_REQUEST_ID = re.compile(rb"[^A-Za-z0-9._:/+=@-]")


@often_made(frozen=True, slots=True)
class CallHead:
    """How to read a request's body, send its answer and schedule it.

    ``body_bytes`` is None while only the stream will tell. ``coding`` and ``accepted`` are content
    codings, "" for none.
    """

    body_bytes: int | None
    coding: str
    accepted: str
    timeout_s: float
    priority: int
    key: str = ""


def parse_head(headers: Mapping[bytes, bytes]) -> CallHead:
    """Return what ``headers`` (lower-case names) say. Raises HttpError (415) or ServingError."""
    return CallHead(
        body_bytes=_whole(headers, b"content-length", _LENGTH),
        coding=content_coding(headers.get(b"content-encoding", b"")),
        accepted=accepted_coding(headers.get(b"accept-encoding", b"")),
        timeout_s=_timeout_s(headers.get(b"x-request-timeout-ms")),
        priority=whole(headers, b"x-request-priority") or 0,
        key=headers.get(b"x-request-key", b"").decode("latin-1"),
    )


def media_type(headers: Mapping[bytes, bytes]) -> str:
    """Return JSON or PROTOBUF; JSON also when nothing is said, or what ``curl -d`` says then.

    Raises HttpError (415).
    """
    content_type = headers.get(b"content-type", b"application/json")
    essence = content_type.partition(b";")[0].strip().lower()
    if essence in {b"application/json", b"application/x-www-form-urlencoded"}:
        return JSON
    if essence == b"application/x-protobuf":
        return PROTOBUF
    detail = f"content-type: {_shown(content_type)} is not supported, send {JSON} or {PROTOBUF}"
    raise HttpError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, detail)


def whole(headers: Mapping[bytes, bytes], name: bytes) -> int | None:
    """Return the whole number in the header ``name``, None if there is none.

    Raises ServingError (INVALID_REQUEST).
    """
    return _whole(headers, name, _WHOLE)


def _whole(headers: Mapping[bytes, bytes], name: bytes, digits: re.Pattern[bytes]) -> int | None:
    value = headers.get(name)
    if value is None:
        return None
    if not digits.fullmatch(value):
        raise invalid(f"{name.decode()}: {_shown(value)} is not a whole number of 0 or more")
    return int(value)


def has_body(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a body follows a head of HTTP/1.1 (RFC 9112 6.3)."""
    length = headers.get(b"content-length", b"")
    return b"transfer-encoding" in headers or length.strip(b"0") != b""


def own_id(headers: Mapping[bytes, bytes]) -> str:
    """Return the id that the client gave its request, else that of its trace, else a new one."""
    given = headers.get(b"x-request-id")
    return (given and harmless(given)) or own_trace(headers) or secrets.token_hex(8)


def own_trace(headers: Mapping[bytes, bytes]) -> str:
    """Return the id of the trace that a request is a part of, "" for none."""
    given = headers.get(_TRACEPARENT)
    return trace_id(given.decode("latin-1")) if given else ""


def span_of(observer: Observer, headers: Mapping[bytes, bytes], began_s: float) -> Trace | None:
    """Return the span of a request with ``headers`` that began so, None if it is not traced."""
    parent, state = headers.get(_TRACEPARENT, b""), headers.get(_TRACESTATE, b"")
    return observer.traced(parent.decode("latin-1"), state.decode("latin-1"), began_s)


def harmless(given: bytes) -> str:
    """Return as much of a client's id as logs and headers can carry, perhaps nothing."""
    return _NOT_IN_REQUEST_ID.sub(b"", given[:MAX_REQUEST_ID_CHARACTERS]).decode("ascii")


def _timeout_s(header: bytes | None) -> float:
    if header is None:
        return math.inf
    timeout_ms = float(header) if _DECIMAL.fullmatch(header) else 0.0
    if timeout_ms == 0:
        raise invalid(f"x-request-timeout-ms: {_shown(header)} is not a number of ms above 0")
    return timeout_ms / 1000


def _shown(value: bytes) -> str:
    return repr(value[:64].decode("latin-1"))
