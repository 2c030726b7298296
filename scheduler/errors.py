"""Every error a request or a model can meet.

    Exception
    ├── ServingError      one request's answer is an error; carries a protocol-neutral Code
    ├── LoadError         a model cannot be served; the message says what to change
    └── DeviceLostError   a backend's device is of no use any more; the message says why

Transports turn a Code into a wire status with the one table in ``transports/status.py``.
"""

import enum
from collections.abc import Collection
from itertools import islice
from typing import NamedTuple

_NAMES = 5  # of a list of them, in a message


class Code(enum.Enum):
    """Why a request failed, in no protocol's terms."""

    INVALID_REQUEST = "invalid_request"
    UNAUTHENTICATED = "unauthenticated"
    PERMISSION_DENIED = "permission_denied"
    MODEL_NOT_FOUND = "model_not_found"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    OVERLOADED = "overloaded"
    RATE_LIMITED = "rate_limited"
    UNAVAILABLE = "unavailable"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    CANCELLED = "cancelled"
    UNSUPPORTED = "unsupported"
    INTERNAL = "internal"


class Missed(NamedTuple):
    """So many ids of one request that ``table`` has no row for, and by which policy they went."""

    table: str
    policy: str
    ids: int


class ServingError(Exception):
    """Answer one request with an error.

    ``detail`` is a sentence for the client: it names the field, the limit and the value.
    ``retry_after_s`` is an estimate of when a retry may succeed (seconds), if one is known.
    ``version`` is the version of the model that the request was for, "" if that is not known.
    ``missed`` are the ids that led to the refusal, if ids did.
    """

    def __init__(self, code: Code, detail: str, retry_after_s: float | None = None) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.retry_after_s = retry_after_s
        self.version = ""
        self.missed: tuple[Missed, ...] = ()


class LoadError(Exception):
    """Say why a model cannot be loaded, and which file or flag to change."""


class DeviceLostError(Exception):
    """Say that no later call of this backend can succeed (a CUDA error that sticks, a dead worker).

    Raised by a backend while it computes; the scheduler then fails the model instead of retrying.
    """


def shown(text: str) -> str:
    """Return a client's ``text`` fit for a message: quoted, on one line, cut at 64."""
    return repr(text if len(text) <= 64 else f"{text[:64]}...")


def first_of(names: Collection[str]) -> str:
    """Return the first few names, for a message; dots if there are more."""
    return ", ".join(islice(names, _NAMES)) + (", ..." if len(names) > _NAMES else "")


def invalid(detail: str) -> ServingError:
    """Return the error for a request that can never succeed as it stands."""
    return ServingError(Code.INVALID_REQUEST, detail)
