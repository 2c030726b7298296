import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2

from backends.fake import FakeBackend, FakeOptions
from scheduler.engine import Engine
from scheduler.observer import Observer
from scheduler.options import SchedulerOptions
from tests.fixtures.grpc_calls import HEALTH, grpc_client, grpc_serving, status_of

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


@pytest.mark.parametrize(
    "service", ["", "predictor.Predictor", "inference.GRPCInferenceService", "fake"]
)
async def test_the_server_each_service_and_each_model_can_be_checked(service: str) -> None:
    async with grpc_serving() as served:
        assert await served.client.check(service) == SERVING
        served.serving.engine.drain()
        assert await served.client.check(service) == NOT_SERVING


@pytest.mark.parametrize(
    "service", ["", "predictor.Predictor", "inference.GRPCInferenceService", "fake"]
)
async def test_the_server_each_service_and_each_model_can_be_watched(service: str) -> None:
    async with grpc_serving() as served:
        watch = served.client.watch(service)
        assert (await watch.read()).status == SERVING
        served.serving.engine.drain()
        assert (await watch.read()).status == NOT_SERVING


async def test_an_unknown_service_is_not_found() -> None:
    async with grpc_serving() as served:
        error = await status_of(served.client.check("other"))
        assert error.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("method", ["Check", "Watch"])
async def test_a_malformed_message_is_an_invalid_argument_and_not_logged(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with grpc_serving() as served:
        channel, path = served.client.channel, f"{HEALTH}/{method}"
        if method == "Check":
            answer = channel.unary_unary(path)(b"\xff\xff")
        else:
            answer = channel.unary_stream(path)(b"\xff\xff").read()
        error = await status_of(answer)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error.details() == "message is not a grpc.health.v1.HealthCheckRequest"
    assert not caplog.records


async def test_a_watcher_hears_of_every_change_until_the_server_stops() -> None:
    engine = Engine(SchedulerOptions(), Observer())
    async with grpc_client(engine) as (client, transport):
        server, model = client.watch(), client.watch("fake")
        assert (await server.read()).status == NOT_SERVING
        assert (await model.read()).status == SERVICE_UNKNOWN
        await engine.load(FakeBackend(FakeOptions()))
        engine.open()
        assert (await server.read()).status == SERVING
        assert (await model.read()).status == SERVING
        # The grace is longer than the test may last: an open watch must not use it up.
        await transport.stop(grace_s=600)
        assert (await server.read()).status == NOT_SERVING
        assert await server.read() is grpc.aio.EOF
        await engine.close(0)


async def test_a_watcher_that_leaves_does_not_deafen_the_others() -> None:
    async with grpc_serving() as served:
        leaver, stayer = served.client.watch(), served.client.watch()
        assert (await leaver.read()).status == SERVING
        assert (await stayer.read()).status == SERVING
        leaver.cancel()
        await served.client.check()  # on the same connection, so the cancel has arrived
        served.serving.engine.drain()
        async with asyncio.timeout(60):
            assert (await stayer.read()).status == NOT_SERVING
