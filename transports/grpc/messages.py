"""Parse what grpcio hands over as bytes: its own deserialisers log a traceback per bad message."""

from typing import Any

import grpc
from google.protobuf.message import DecodeError


async def parsed(message_class: Any, body: bytes, context: Any) -> Any:
    """Return the message in ``body``, or end the call with INVALID_ARGUMENT."""
    try:
        return message_class.FromString(body)
    except DecodeError:
        name = message_class.DESCRIPTOR.full_name
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"message is not a {name}")
