"""The bytes of all requests together are bounded, and counted until they are held no more."""

import asyncio
import contextlib
import gzip
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import grpc
import ngh2
import pytest

from tests.fixtures.raw_grpc import RawGrpc, framed, head, raw_grpc
from transports.grpc.methods import Arrival, Methods, Reply, Send
from transports.grpc.nghttp2 import limits
from transports.grpc.nghttp2.server import Nghttp2Server
from transports.grpc.options import GrpcOptions
from transports.grpc.outcome import refusal

LIMIT_BYTES = 200_000
HALF = framed(bytes(LIMIT_BYTES // 2 - 5))
ECHO, STREAM, NONE = "/test.Echo/Echo", "/test.Echo/Stream", "/test.Echo/None"
OK, INVALID, EXHAUSTED = 0, 3, 8
GZIP = (b"grpc-encoding", b"gzip")


@dataclass
class Served:
    """A server whose unary calls wait for ``go``, and whose streams read all before they answer."""

    port: int
    go: asyncio.Event = field(default_factory=asyncio.Event)
    began: asyncio.Event = field(default_factory=asyncio.Event)

    async def echo(self, body: bytes, arrival: Arrival) -> Reply:
        """Answer with the size of the request."""
        del arrival
        self.began.set()
        await self.go.wait()
        return Reply(grpc.StatusCode.OK, b"%d" % len(body))

    async def stream(self, bodies: AsyncIterator[bytes], arrival: Arrival, send: Send) -> Reply:
        """Answer each message, once all have come."""
        del arrival
        held = []
        async for body in bodies:
            held.append(body)
            self.began.set()
        for body in held:
            await send(b"%d" % len(body))
        return Reply(grpc.StatusCode.OK)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """A server for two messages of the largest."""
    bound = socket.socket()
    bound.setblocking(False)
    bound.bind(("127.0.0.1", 0))
    state = Served(bound.getsockname()[1])
    methods = Methods(
        {ECHO: state.echo}, {STREAM: state.stream}, lambda _, failure: refusal(failure, "id")
    )
    options = GrpcOptions(max_message_bytes=LIMIT_BYTES // 2, max_buffered_bytes=LIMIT_BYTES)
    server = Nghttp2Server(options, methods)
    await server.serve([bound])
    yield state
    await server.stop(0, 1, lambda: None)


@contextlib.asynccontextmanager
async def connected(served: Served) -> AsyncIterator[RawGrpc]:
    """Connect, and hear of the server's windows."""
    async with raw_grpc(served.port) as raw:
        await raw.answer(raw.ask(head(NONE), framed(b"")))
        yield raw


async def just_two_fit(served: Served) -> bool:
    """Return whether the whole budget is free, and not a byte more."""
    async with connected(served) as raw:
        two = [raw.ask(head(ECHO), HALF, ended=False) for _ in range(2)]
        third = await raw.answer(raw.ask(head(ECHO), b"\0"))
        for stream in two:
            with contextlib.suppress(ngh2.NGH2Error):  # it was refused
                raw.h2.end_stream(stream)
        raw.flush()
        statuses = [(await raw.answer(stream)).status for stream in two]
        return third.status == EXHAUSTED and statuses == [OK, OK]


async def reset_unfinished(served: Served, raw: RawGrpc) -> None:
    stream = raw.ask(head(ECHO), HALF[:-1], ended=False)
    raw.h2.reset_stream(stream)
    raw.flush()


async def reset_unended(served: Served, raw: RawGrpc) -> None:
    stream = raw.ask(head(ECHO), HALF, ended=False)
    raw.h2.reset_stream(stream)
    raw.flush()


async def reset_running(served: Served, raw: RawGrpc) -> None:
    stream = raw.ask(head(ECHO), HALF)
    await served.began.wait()
    raw.h2.reset_stream(stream)
    raw.flush()


async def reset_running_stream(served: Served, raw: RawGrpc) -> None:
    stream = raw.ask(head(STREAM), HALF + HALF[:-9], ended=False)
    await served.began.wait()
    raw.h2.reset_stream(stream)
    raw.flush()


async def leave_unfinished(served: Served, raw: RawGrpc) -> None:
    raw.ask(head(ECHO), HALF[:-1], ended=False)


async def leave_running(served: Served, raw: RawGrpc) -> None:
    raw.ask(head(ECHO), HALF)
    raw.ask(head(STREAM), HALF[:-9], ended=False)
    await served.began.wait()


async def be_answered(served: Served, raw: RawGrpc) -> None:
    served.go.set()
    assert (await raw.answer(raw.ask(head(ECHO), HALF))).status == OK
    packed = framed(gzip.compress(HALF[5:]), flag=1)
    assert (await raw.answer(raw.ask(head(ECHO, GZIP), packed))).status == OK
    assert (await raw.answer(raw.ask(head(STREAM, GZIP), packed + framed(b"1")))).status == OK


async def be_refused(served: Served, raw: RawGrpc) -> None:
    served.go.set()
    for path in (ECHO, STREAM):
        for fault in (framed(b"", flag=3), framed(b"not gzip", flag=1), b"\0", b"\0\xff\0\0\0"):
            sent = framed(b"1" * 1000) + fault if path == STREAM else fault
            assert (await raw.answer(raw.ask(head(path, GZIP), sent))).status in (INVALID, 8)


async def be_too_many(served: Served, raw: RawGrpc) -> None:
    streams = [raw.ask(head(ECHO), HALF, ended=False) for _ in range(5)]
    assert (await raw.answer(streams[-1])).status == EXHAUSTED


@pytest.mark.parametrize(
    "path",
    [
        reset_unfinished,
        reset_unended,
        reset_running,
        reset_running_stream,
        leave_unfinished,
        leave_running,
        be_answered,
        be_refused,
        be_too_many,
    ],
    ids=lambda path: path.__name__,
)
async def test_what_a_call_held_is_free_again_however_it_ends(
    served: Served, path: Callable[[Served, RawGrpc], Awaitable[None]]
) -> None:
    async with connected(served) as raw:
        await path(served, raw)
    served.go.set()
    async with asyncio.timeout(60):
        while not await just_two_fit(served):
            pass


async def test_messages_of_all_connections_are_bounded_together(served: Served) -> None:
    served.go.set()
    async with connected(served) as one, connected(served) as other, connected(served) as third:
        held = []
        for raw in (one, other):
            served.began.clear()
            held.append((raw, raw.ask(head(STREAM), HALF, ended=False)))
            await served.began.wait()
        refused = await third.answer(third.ask(head(ECHO), framed(b"1")))
        assert refused.status == EXHAUSTED
        assert b"limit of 200000 bytes" in refused.fields[b"grpc-message"]
        assert b"max_buffered_bytes" in refused.fields[b"grpc-message"]
        assert refused.fields[b"grpc-retry-pushback-ms"] == b"1000"
        for raw, stream in held:
            raw.h2.end_stream(stream)
            raw.flush()
            assert (await raw.answer(stream)).status == OK
        assert (await third.answer(third.ask(head(ECHO), framed(b"1")))).status == OK


async def test_what_messages_unpack_to_counts(served: Served) -> None:
    served.go.set()
    packed = framed(gzip.compress(HALF[5:]), flag=1)
    async with connected(served) as raw:
        streams = [raw.h2.send_request(head(ECHO, GZIP)) for _ in range(5)]
        for stream in streams:
            raw.h2.send_data(stream, packed, end_stream=True)
        raw.flush()  # one segment: they are unpacked side by side
        statuses = [(await raw.answer(stream)).status for stream in streams]
        assert set(statuses) == {OK, EXHAUSTED}
        assert (await raw.answer(raw.ask(head(ECHO, GZIP), packed))).status == OK


async def test_messages_that_a_stream_has_not_answered_count(served: Served) -> None:
    async with connected(served) as raw:
        stream = raw.ask(head(STREAM), HALF + HALF, ended=False)
        assert (await raw.answer(raw.ask(head(ECHO), framed(b"1")))).status == EXHAUSTED
        raw.h2.end_stream(stream)
        raw.flush()
        assert (await raw.answer(stream)).body == framed(b"99995") * 2


async def test_a_whole_request_without_its_end_is_unfinished(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "UNFINISHED_BYTES", 0)
    async with connected(served) as raw:
        served.go.set()
        first = raw.ask(head(ECHO), HALF, ended=False)
        answer = await raw.answer(raw.ask(head(ECHO), framed(b"1"), ended=False))
        assert answer.status == EXHAUSTED
        assert b"unfinished" in answer.fields[b"grpc-message"]
        raw.h2.end_stream(first)
        raw.flush()
        assert (await raw.answer(first)).status == OK
