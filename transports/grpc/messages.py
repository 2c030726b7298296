"""Methods whose request and answer are protobuf messages."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from scheduler.errors import ServingError, invalid
from transports.grpc.metadata import REQUEST_ID, own_id
from transports.grpc.methods import Arrival, Reply, Unary
from transports.grpc.outcome import outcome_of, refusal


def parsed(message_class: Any, body: bytes) -> Any:
    """Return the message in ``body``. Raises ServingError (INVALID_REQUEST)."""
    try:
        return message_class.FromString(body)
    except DecodeError as error:
        raise invalid(f"message is not a {message_class.DESCRIPTOR.full_name}") from error


def unary(message_class: Any, answer: Callable[[Any], Awaitable[Any]]) -> Unary:
    """Return a method that answers messages with messages; ``answer`` may raise ServingError."""

    async def answered(body: bytes) -> bytes:
        message = await answer(parsed(message_class, body))
        serialised: bytes = message.SerializeToString()
        return serialised

    async def method(body: bytes, arrival: Arrival) -> Reply:
        request_id = own_id(arrival.metadata)
        outcome = await outcome_of(answered(body), lambda: request_id)
        if isinstance(outcome, ServingError):
            return refusal(outcome, request_id)
        return Reply(grpc.StatusCode.OK, outcome, "", ((REQUEST_ID, request_id),))

    return method
