"""Unary calls whose method tells how they end, without a task."""

import asyncio
import gc
import gzip
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc
import pytest

from scheduler.asking import Asked
from tests.fixtures.grpc_calls import grpc_serving
from tests.fixtures.raw_grpc import framed, head, raw_grpc
from tests.fixtures.wire import sample
from transports.grpc.call import Call
from transports.grpc.methods import Answering, Arrival, Methods, Replied, Reply, awaited
from transports.grpc.nghttp2.server import Nghttp2Server
from transports.grpc.options import GrpcOptions
from transports.grpc.outcome import refusal

LATER, AT_ONCE, BROKEN = "/test.Direct/Later", "/test.Direct/AtOnce", "/test.Direct/Broken"
OK, INTERNAL = 0, 13
# Two messages of the largest.
LIMIT_BYTES = 200_000
HALF = framed(bytes(LIMIT_BYTES // 2 - 5))


@dataclass
class Later:
    """A call that is answered when the test says so."""

    replied: Replied
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    def cancel(self) -> None:
        """Remember it."""
        self.cancelled.set()


@dataclass
class Served:
    """A server, and the calls of LATER that have begun."""

    port: int
    began: asyncio.Queue[Later] = field(default_factory=asyncio.Queue)

    def later(self, body: bytes, arrival: Arrival, replied: Replied) -> Answering:
        """Begin, and wait for the test."""
        del body, arrival
        call = Later(replied)
        self.began.put_nowait(call)
        return call

    def at_once(self, body: bytes, arrival: Arrival, replied: Replied) -> Answering:
        """Answer with the size of the request."""
        del arrival
        replied(Reply(grpc.StatusCode.OK, b"%d" % len(body)))
        return Later(replied)

    def broken(self, body: bytes, arrival: Arrival, replied: Replied) -> Answering:
        """Answer nobody."""
        raise ZeroDivisionError("a secret")


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """A server for two messages of the largest."""
    bound = socket.socket()
    bound.setblocking(False)
    bound.bind(("127.0.0.1", 0))
    state = Served(bound.getsockname()[1])
    direct = {LATER: state.later, AT_ONCE: state.at_once, BROKEN: state.broken}
    unary = {path: awaited(method) for path, method in direct.items()}
    methods = Methods(unary, {}, lambda _, failure: refusal(failure, "id"), direct=direct)
    options = GrpcOptions(max_message_bytes=LIMIT_BYTES // 2, max_buffered_bytes=LIMIT_BYTES)
    server = Nghttp2Server(options, methods)
    await server.serve([bound])
    yield state
    await server.stop(0, 1, lambda: None)


async def test_an_answer_at_once_and_one_that_comes_later(served: Served) -> None:
    async with raw_grpc(served.port) as raw:
        at_once = await raw.answer(raw.ask(head(AT_ONCE), framed(b"four")))
        assert (at_once.status, at_once.body) == (OK, framed(b"4"))
        stream = raw.ask(head(LATER), framed(b"x"))
        (await served.began.get()).replied(Reply(grpc.StatusCode.OK, b"late"))
        assert (await raw.answer(stream)).body == framed(b"late")


async def test_a_method_that_breaks_ends_its_call_alone(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    async with raw_grpc(served.port) as raw:
        broken = await raw.answer(raw.ask(head(BROKEN), framed(b"x")))
        assert (broken.status, broken.body) == (INTERNAL, b"")
        assert (await raw.answer(raw.ask(head(AT_ONCE), framed(b"x")))).status == OK
    assert "a secret" in caplog.text


async def test_a_client_that_leaves_cancels_and_its_bytes_are_counted_no_more(
    served: Served,
) -> None:
    async with raw_grpc(served.port) as raw:
        await raw.answer(raw.ask(head(AT_ONCE), framed(b"")))  # and hear of the server's windows
        for _ in range(3):
            stream = raw.ask(head(LATER), HALF)
            call = await served.began.get()
            raw.h2.reset_stream(stream)
            raw.flush()
            await call.cancelled.wait()
            call.replied(Reply(grpc.StatusCode.OK, b"to nobody"))
        assert (await raw.answer(raw.ask(head(AT_ONCE), HALF))).status == OK


async def test_a_packed_request_is_unpacked_first(served: Served) -> None:
    packed = gzip.compress(b"four")
    message = b"\1" + len(packed).to_bytes(4, "big") + packed
    async with raw_grpc(served.port) as raw:
        answer = await raw.answer(raw.ask(head(AT_ONCE, (b"grpc-encoding", b"gzip")), message))
        assert (answer.status, answer.body) == (OK, framed(b"4"))


async def test_an_answered_call_is_left_in_no_cycle() -> None:
    async with grpc_serving() as server:
        server.serving.gate.open()
        await server.client.predict(sample())
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for _ in range(3):
                await server.client.predict(sample())
            gc.collect()
            left = [each for each in gc.garbage if isinstance(each, Call | Asked)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
        assert left == []
