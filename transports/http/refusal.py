"""The answer to what never became a request, in HTTP/1.1's own bytes."""

import asyncio
from collections.abc import Sequence
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from transports.http.problem import MEDIA_TYPE, status_problem


class Full(asyncio.Protocol):
    """A connection too many: one answer, and its end."""

    def __init__(self, limit: int, standing: Sequence[tuple[bytes, bytes]]) -> None:
        self._answer = refusal(
            HTTPStatus.SERVICE_UNAVAILABLE,
            f"the limit of {limit} connections at once is reached (max_connections)",
            standing,
        )

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Answer whatever is asked, and close."""
        transport.write(self._answer)
        transport.close()


def refusal(status: HTTPStatus, detail: str, standing: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return a whole answer with the ``standing`` headers, after which the connection closes."""
    body = status_problem(status, detail).body("")
    head = [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    lines = [b"%b: %b\r\n" % pair for pair in [*standing, *head]]
    return b"".join([STATUS_LINE[status], *lines, b"\r\n", body])
