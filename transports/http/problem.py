"""One error body for everything: one JSON object in both RFC 9457 and Open Inference Protocol."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

import orjson

from scheduler.errors import Code, ServingError
from transports.status import STATUS

MEDIA_TYPE = "application/problem+json"
# Long enough for every path of ours; a client's own may be 64 KiB.
MAX_INSTANCE_CHARACTERS = 256


class HttpError(Exception):
    """Refuse a request for a reason that only HTTP has (a method, a media type, a slow body).

    ``code`` is what metrics and logs count it as.
    """

    def __init__(
        self,
        status: HTTPStatus,
        detail: str,
        headers: Mapping[str, str] | None = None,
        code: Code = Code.INVALID_REQUEST,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers or {}
        self.code = code


@dataclass(frozen=True, slots=True)
class Problem:
    """One error answer; ``headers`` come on top of content type and length."""

    status: int
    type: str
    title: str
    detail: str
    headers: Mapping[str, str]

    def body(self, instance: str) -> bytes:
        """Return the JSON; ``instance`` is the path that was asked for."""
        return orjson.dumps(
            {
                "type": self.type,
                "title": self.title,
                "status": self.status,
                "detail": self.detail,
                "instance": instance[:MAX_INSTANCE_CHARACTERS],
                # The Open Inference Protocol's field, the only one its clients read.
                "error": self.detail,
            }
        )


def problem_of(error: ServingError | HttpError) -> Problem:
    """Return the answer to ``error``."""
    if isinstance(error, HttpError):
        return status_problem(error.status, error.detail, error.headers)
    _, status, title = STATUS[error.code]
    headers = {}
    if error.code in {Code.OVERLOADED, Code.RATE_LIMITED, Code.UNAVAILABLE}:
        # RFC 9110 10.2.3: whole seconds.
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s or 1)))
    if error.code is Code.UNAUTHENTICATED:
        headers["www-authenticate"] = "Bearer"  # RFC 9110 15.5.2: a 401 has to say how
    return Problem(status, f"urn:narsil:error:{error.code.value}", title, error.detail, headers)


def status_problem(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Problem:
    """Return the answer for a status that no Code has (an unknown path, a wrong method)."""
    # RFC 9457 4.2.1: with about:blank the title is the status's own phrase.
    return Problem(status, "about:blank", HTTPStatus(status).phrase, detail, headers or {})


def unexpected_problem() -> Problem:
    """Return the answer to a bug of ours: the details are in the log, not here."""
    return problem_of(ServingError(Code.INTERNAL, "internal error; the server's log has the cause"))
