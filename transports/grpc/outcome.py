"""The one place where what went wrong becomes a gRPC status."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

from scheduler.abandoned import version_noted
from scheduler.errors import Code, ServingError
from transports.grpc.metadata import REQUEST_ID
from transports.grpc.methods import Reply
from transports.status import STATUS

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Trailers above 8 KiB break the client's whole call, and percent-encoding can triple a detail.
MAX_DETAIL_CHARS = 1024


async def outcome_of(work: Awaitable[T], request_id: Callable[[], str]) -> T | ServingError:
    """Await ``work``; return what it gives or the error to send instead.

    Raises CancelledError if the engine cancels the call.
    """
    try:
        return await work
    except ServingError as error:
        # Its frames hold the message; in a cycle with it they would hold it until the collector
        # runs.
        return error.with_traceback(None)
    except asyncio.CancelledError as cancelled:
        if _cancelled_by_engine():
            raise
        # Raised as it is, with the call still open, it would leave the client without a status.
        failure = ServingError(Code.CANCELLED, "the server cancelled the request")
        failure.version = version_noted(cancelled)
        return failure
    except Exception:
        logger.exception("request %s: unexpected error", request_id())
        return ServingError(Code.INTERNAL, f"internal error; request id {request_id()}")


def refusal(failure: ServingError, request_id: str) -> Reply:
    """Return how a call ends that failed with ``failure``."""
    trailers = [(REQUEST_ID, request_id)]
    if failure.retry_after_s is not None:
        trailers.append(("grpc-retry-pushback-ms", str(math.ceil(failure.retry_after_s * 1000))))
    detail = failure.detail[:MAX_DETAIL_CHARS]
    return Reply(STATUS[failure.code].grpc, detail=detail, trailers=tuple(trailers))


def _cancelled_by_engine() -> bool:
    """Tell the engine cancelling this call's task from a future within being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
