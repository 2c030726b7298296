"""What the headers of a predict request say, checked."""

import math
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

from scheduler.errors import invalid
from transports.http.problem import HttpError

JSON = "application/json"
PROTOBUF = "application/x-protobuf"

MAX_REQUEST_ID_CHARACTERS = 128
# Not all that float() takes: no exponent, sign, space, underscore or "nan".
_DECIMAL = re.compile(rb"[0-9]{1,15}(\.[0-9]{1,15})?")
_NOT_IN_REQUEST_ID = re.compile(rb"[^A-Za-z0-9._:/+=@-]")


@dataclass(frozen=True, slots=True)
class PredictHead:
    """How to read a predict request; ``body_bytes`` is None while only the stream will tell."""

    media_type: str
    body_bytes: int | None
    timeout_s: float


def parse_head(headers: Mapping[bytes, bytes]) -> PredictHead:
    """Return what ``headers`` (lower-case names) say. Raises HttpError (415) or ServingError."""
    coding = headers.get(b"content-encoding", b"identity")
    if coding != b"identity":
        raise _unsupported("content-encoding", coding, "no coding")
    length = headers.get(b"content-length")
    return PredictHead(
        media_type=_media_type(headers.get(b"content-type")),
        body_bytes=None if length is None else int(length),
        timeout_s=_timeout_s(headers.get(b"x-request-timeout-ms")),
    )


def request_id(given: bytes) -> str:
    """Return the client's own id, made harmless for logs and headers, or a fresh one."""
    harmless = _NOT_IN_REQUEST_ID.sub(b"", given[:MAX_REQUEST_ID_CHARACTERS])
    return harmless.decode("ascii") or secrets.token_hex(8)


def _media_type(content_type: bytes | None) -> str:
    """JSON also when nothing is said, or what ``curl -d`` says when it is told nothing."""
    if content_type is None:
        return JSON
    essence = content_type.partition(b";")[0].strip().lower()
    if essence in {b"application/json", b"application/x-www-form-urlencoded"}:
        return JSON
    if essence == b"application/x-protobuf":
        return PROTOBUF
    raise _unsupported("content-type", content_type, f"{JSON} or {PROTOBUF}")


def _timeout_s(header: bytes | None) -> float:
    if header is None:
        return math.inf
    timeout_ms = float(header) if _DECIMAL.fullmatch(header) else 0.0
    if timeout_ms == 0:
        raise invalid(f"x-request-timeout-ms: {_shown(header)} is not a number of ms above 0")
    return timeout_ms / 1000


def _unsupported(name: str, value: bytes, expected: str) -> HttpError:
    detail = f"{name}: {_shown(value)} is not supported, send {expected}"
    return HttpError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, detail)


def _shown(value: bytes) -> str:
    return repr(value[:64].decode("latin-1"))
