"""Server reflection: lets ``grpcurl`` and others call the services without their .proto files."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

from scheduler.errors import ServingError
from transports.grpc.messages import parsed
from transports.grpc.metadata import own_id
from transports.grpc.methods import Arrival, Reply, Send, Stream
from transports.grpc.outcome import refusal

# The two versions share every message, field by field; older clients ask for the first only.
SERVICES = ("grpc.reflection.v1alpha.ServerReflection", "grpc.reflection.v1.ServerReflection")


class Reflection:
    """List and describe ``services`` until closed."""

    def __init__(self, services: tuple[str, ...]) -> None:
        self._servicer = ReflectionServicer((*services, SERVICES[0]))
        self._closed = False
        self._waits: set[asyncio.Timeout] = set()

    def streams(self) -> dict[str, Stream]:
        """Return the method of the service's two versions, by path."""
        return {f"/{service}/ServerReflectionInfo": self.answer for service in SERVICES}

    def close(self) -> None:
        """End every stream, which would otherwise hold up the stop."""
        self._closed = True
        for wait in self._waits:
            wait.reschedule(asyncio.get_running_loop().time())

    async def answer(self, questions: AsyncIterator[bytes], arrival: Arrival, send: Send) -> Reply:
        """Answer the questions of one stream until the client or ``close`` ends it."""
        try:
            while (body := await self._next(questions)) is not None:
                question = parsed(reflection_pb2.ServerReflectionRequest, body)
                async for answer in self._servicer.ServerReflectionInfo(_one(question), None):
                    await send(answer.SerializeToString())
        except ServingError as failure:
            return refusal(failure, own_id(arrival.metadata))
        return Reply(grpc.StatusCode.OK)

    async def _next(self, questions: AsyncIterator[bytes]) -> bytes | None:
        """Return a question, None after the last or if closed.

        Only this wait may be cut short: grpcio cannot end a call whose answer is being written.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0 if self._closed else None) as wait:
                self._waits.add(wait)
                try:
                    return await anext(questions, None)
                finally:
                    self._waits.discard(wait)
        return None


async def _one(question: Any) -> AsyncIterator[Any]:
    yield question
