"""What a request held is free once it is over: the garbage collector comes seldom to a server."""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TypeAlias

import ngh2
import pytest

from scheduler.replies import Owed
from tests.fixtures.gates import Serving, serving
from tests.fixtures.grpc_calls import grpc_client, grpc_options
from tests.fixtures.raw_grpc import PREDICT, framed, head, raw_grpc
from tests.fixtures.raw_http import post, raw
from tests.fixtures.requests import as_json, as_protobuf, random_request
from transports.grpc.call import Call
from transports.grpc.nghttp2.calls import Call as StreamCall
from transports.http.exchange import Exchange
from transports.http.incoming import Incoming
from transports.http.server import HttpOptions, HttpTransport

pytestmark = pytest.mark.timeout(110)

PER_REQUEST = (Owed, Call, StreamCall, Exchange, Incoming)


Freed: TypeAlias = Callable[[], Awaitable[None]]


def held() -> int:
    """Return how much of requests there is."""
    return sum([issubclass(type(each), PER_REQUEST) for each in gc.get_objects()])


@pytest.fixture
def freed() -> Iterator[Freed]:
    """Keep the collector from freeing anything; yield what returns once nothing is held."""
    gc.collect()
    gc.disable()
    others = held()  # other tests'

    async def freed() -> None:
        async with asyncio.timeout(60):
            while held() > others:  # noqa: ASYNC110  # no event says so
                await asyncio.sleep(0.02)

    yield freed
    gc.enable()


@pytest.fixture
async def served(freed: Freed) -> AsyncIterator[Serving]:
    """A gated fake model."""
    async with serving() as state:
        yield state


@pytest.fixture
async def grpc_port(served: Serving) -> AsyncIterator[int]:
    """A port where gRPC is spoken."""
    async with grpc_client(served.engine, grpc_options(engine="nghttp2")) as (client, _):
        yield client.port


@pytest.fixture
async def http_url(served: Serving) -> AsyncIterator[str]:
    """A URL where HTTP/1.1 is spoken."""
    transport = HttpTransport(HttpOptions(port=0))
    (url,) = await transport.start(served.engine)
    yield url
    await transport.stop(0.2)


def grpc_body(served: Serving) -> bytes:
    return framed(as_protobuf(random_request(served.backend.spec, 2, seed=1)))


def http_body(served: Serving) -> bytes:
    return as_json(random_request(served.backend.spec, 2, seed=1), served.backend.spec)


async def test_a_grpc_call_that_was_answered(served: Serving, grpc_port: int, freed: Freed) -> None:
    served.gate.open()
    async with raw_grpc(grpc_port) as client:
        for body, status in ((grpc_body(served), 0), (framed(b"\xff"), 3)):
            assert (await client.answer(client.ask(data=body))).status == status
        await freed()


async def test_a_grpc_call_whose_deadline_passed(
    served: Serving, grpc_port: int, freed: Freed
) -> None:
    async with raw_grpc(grpc_port) as client:
        asked = client.ask(head(PREDICT, (b"grpc-timeout", b"1m")), grpc_body(served))
        assert (await client.answer(asked)).status == 4
        served.gate.open()
        await freed()


async def test_a_grpc_call_that_was_cancelled(
    served: Serving, grpc_port: int, freed: Freed
) -> None:
    async with raw_grpc(grpc_port) as client:
        asked = client.ask(data=grpc_body(served))
        await served.gate.began()
        client.h2.reset_stream(asked, ngh2.ErrorCode.CANCEL)
        client.flush()
        served.gate.open()
        await freed()


async def test_an_http_request_whose_client_left(
    served: Serving, http_url: str, freed: Freed
) -> None:
    async with raw(http_url) as client:
        await client.send(post(http_body(served)))
        await served.gate.began()
    served.gate.open()
    await freed()


async def test_an_http_request_whose_client_left_before_its_end(
    served: Serving, http_url: str, freed: Freed
) -> None:
    async with raw(http_url) as client:
        await client.send(post(http_body(served))[:-1])
        async with asyncio.timeout(60):
            while not held():  # noqa: ASYNC110  # no event says so
                await asyncio.sleep(0.02)
    await freed()
