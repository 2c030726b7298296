"""Server reflection: lets ``grpcurl`` and others call the services without their .proto files."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

from transports.grpc.messages import parsed

# The two versions share every message, field by field; older clients ask for the first only.
SERVICES = ("grpc.reflection.v1alpha.ServerReflection", "grpc.reflection.v1.ServerReflection")


class Reflection:
    """List and describe ``services`` until closed."""

    def __init__(self, services: tuple[str, ...]) -> None:
        self._servicer = ReflectionServicer((*services, SERVICES[0]))
        self._closed = False
        self._streams: set[asyncio.Timeout] = set()

    def method_handlers(self) -> Iterator[grpc.GenericRpcHandler]:
        """Yield what grpcio registers for the service's two versions."""
        method = grpc.stream_stream_rpc_method_handler(
            self.answer,
            response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
        for service in SERVICES:
            yield grpc.method_handlers_generic_handler(service, {"ServerReflectionInfo": method})

    def close(self) -> None:
        """End every stream, which would otherwise hold up the stop."""
        self._closed = True
        for stream in self._streams:
            stream.reschedule(asyncio.get_running_loop().time())

    async def answer(self, questions: AsyncIterator[bytes], context: Any) -> None:
        """Answer the questions of one stream until the client or ``close`` ends it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0 if self._closed else None) as stream:
                self._streams.add(stream)
                try:
                    await self._answer_all(questions, context)
                finally:
                    self._streams.discard(stream)

    async def _answer_all(self, questions: AsyncIterator[bytes], context: Any) -> None:
        async for body in questions:
            question = await parsed(reflection_pb2.ServerReflectionRequest, body, context)
            async for answer in self._servicer.ServerReflectionInfo(_one(question), context):
                await context.write(answer)


async def _one(question: Any) -> AsyncIterator[Any]:
    yield question
