"""The body of a request for one of the Open Inference Protocol's pages: a small object."""

from typing import Any, TypeAlias

from fastapi import Request

from transports.codecs.strict_json import parse_object
from transports.http.body import Body
from transports.http.intake import BodyLimits, Intake

Document: TypeAlias = dict[str, Any]

# A flag or two.
PAGE_BODY = BodyLimits(
    max_request_bytes=4096, max_json_bytes=4096, max_buffered_bytes=1 << 20, body_timeout_s=10.0
)


async def document_in(request: Request, intake: Intake) -> Document:
    """Return the request's object, empty if it has no body. Raises ServingError."""
    body = Body(request.receive, intake)
    try:
        content = await body.read(None, json_bytes=None)
    finally:
        body.release()
    return parse_object(content) if content else {}
