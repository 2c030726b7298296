"""The load generator's raw gRPC client."""

import asyncio

import pytest

from loadtest import grpc_wire
from loadtest.closed import NoServerError
from loadtest.grpc_wire import Load
from scheduler.errors import Code
from tests.fixtures.grpc_calls import grpc_options, grpc_serving
from tests.fixtures.wire import sample
from transports.grpc.options import ENGINES

BODY = sample().message().SerializeToString()


@pytest.mark.parametrize("engine", ENGINES)
async def test_every_request_is_answered_and_counted(engine: str) -> None:
    async with grpc_serving(grpc_options(engine=engine)) as served:
        served.serving.gate.open()
        load = Load([BODY], in_flight=4, warmup_s=0.0, measure_s=0.1)
        result = await asyncio.to_thread(grpc_wire.run, "127.0.0.1", served.client.port, load)
        assert not result.errors
        answered = [record for record in served.observed.answers if record.code is None]
        assert len(result.latencies_s) == len(answered) >= 4


@pytest.mark.parametrize("engine", ENGINES)
async def test_failed_requests_are_counted_apart(engine: str) -> None:
    async with grpc_serving(grpc_options(engine=engine)) as served:
        load = Load([b"\xff"], in_flight=2, warmup_s=0.0, measure_s=0.05)
        result = await asyncio.to_thread(grpc_wire.run, "127.0.0.1", served.client.port, load)
        assert not len(result.latencies_s)
        assert result.errors == len(served.observed.answers) >= 2
        assert result.failures.first.startswith("3: ")
        assert {record.code for record in served.observed.answers} == {Code.INVALID_REQUEST}


def test_no_server_is_one_sentence() -> None:
    with pytest.raises(NoServerError, match=r"127\.0\.0\.1:1: "):
        grpc_wire.run("127.0.0.1", 1, Load([BODY], 1, 0, 0.1))
