import asyncio
import math
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import pytest
import uvloop
from google.protobuf import descriptor_pb2
from grpc_reflection.v1alpha import reflection_pb2

from scheduler.errors import Code
from tests.fixtures.grpc_calls import Client, grpc_options, grpc_serving, scores, status_of
from tests.fixtures.wire import sample
from transports.grpc.options import GrpcOptions
from transports.grpc.server import GrpcTransport

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
REFLECTION = ("grpc.reflection.v1alpha.ServerReflection", "grpc.reflection.v1.ServerReflection")


def taken_port() -> socket.socket:
    """Return a socket that listens on a free port of 127.0.0.1."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener


async def failure_of(call: Any) -> grpc.StatusCode | None:
    """Return how ``call`` failed, or None if it was answered."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return None


async def refused(port: int) -> None:
    """Return once ``port`` takes no more connections; fail the test if it still does after 10 s."""
    async with asyncio.timeout(60):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionError:
                return
            writer.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_taken_port_is_an_error_that_names_it(host: str) -> None:
    async with grpc_serving() as served:
        with taken_port() as listener:
            port = listener.getsockname()[1]
            with pytest.raises(OSError, match=f"{host}:{port}/tcp: Address already in use"):
                await GrpcTransport(grpc_options(host=host, port=port)).start(served.serving.engine)


async def test_an_address_of_another_machine_is_an_error_that_names_it() -> None:
    async with grpc_serving() as served:
        with pytest.raises(OSError, match=r"192\.0\.2\.1:"):
            await GrpcTransport(grpc_options(host="192.0.2.1")).start(served.serving.engine)


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".invalid", "nul\0"])
async def test_a_host_that_is_no_name_is_an_error_that_names_it(host: str) -> None:
    async with grpc_serving() as served:
        with pytest.raises(OSError, match="cannot listen on ") as refusal:
            await GrpcTransport(grpc_options(host=host)).start(served.serving.engine)
        assert repr(host) in str(refusal.value)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("port", -1),
        ("port", 70001),
        ("max_message_bytes", 0),
        ("max_message_bytes", 2_000_000_000),
        ("max_buffered_bytes", (128 << 20) - 1),
        ("max_buffered_bytes", 2**40 + 1),
        ("max_concurrent_streams", 0),
        ("max_concurrent_streams", 2**31),
        ("max_connection_age_s", -1.0),
        ("max_connection_age_s", math.nan),
        ("max_connection_age_s", math.inf),
    ],
)
def test_an_option_out_of_range_is_refused_with_its_name_and_value(
    option: str, value: float
) -> None:
    with pytest.raises(ValueError, match=f"^{option} must be .*, got {value}$"):
        GrpcOptions(**{option: value})  # type: ignore[arg-type]  # one of several types


async def test_the_largest_options_serve() -> None:
    largest = grpc_options(
        max_message_bytes=1_908_874_352,
        max_buffered_bytes=2**40,
        max_concurrent_streams=2**31 - 1,
        max_connection_age_s=2_147_483,
    )
    async with grpc_serving(largest) as served:
        served.serving.gate.open()
        assert len(scores(await served.client.predict())) == 2


async def test_two_servers_do_not_share_a_port() -> None:
    async with grpc_serving() as served:
        second = GrpcTransport(grpc_options(port=served.client.port))
        with pytest.raises(OSError, match="already in use"):
            await second.start(served.serving.engine)


async def test_a_transport_that_never_started_can_be_stopped() -> None:
    await GrpcTransport(grpc_options()).stop(grace_s=1.0)


async def test_stopping_lets_calls_under_way_finish_and_takes_no_new_ones() -> None:
    async with grpc_serving() as served:
        call = served.client.predict()
        running = await served.serving.gate.began()
        stopping = asyncio.create_task(served.transport.stop(grace_s=600))
        await refused(served.client.port)
        assert not stopping.done()
        running.finish()
        assert len(scores(await call)) == 2
        await stopping


async def test_calls_on_the_wire_when_the_server_stops_are_told_that_it_is_unavailable() -> None:
    async with grpc_serving() as served:
        served.serving.gate.open()
        await served.client.predict()  # connected
        calls = [served.client.predict() for _ in range(64)]
        failures = asyncio.gather(*(failure_of(call) for call in calls))
        await asyncio.sleep(0)
        await served.transport.stop(grace_s=600)
        assert {failure for failure in await failures if failure} <= {UNAVAILABLE}


async def test_calls_that_arrive_while_the_server_stops_are_served_or_refused() -> None:
    async with grpc_serving() as served:
        under_way = served.client.predict()
        running = await served.serving.gate.began()
        served.serving.gate.open()
        stopping = asyncio.create_task(served.transport.stop(grace_s=600))
        await asyncio.sleep(0)
        assert await failure_of(served.client.predict()) in (None, UNAVAILABLE)
        assert not stopping.done()
        running.finish()
        assert len(scores(await under_way)) == 2
        await stopping


async def test_calls_still_under_way_after_the_grace_are_ended_with_a_status() -> None:
    async with grpc_serving() as served:
        call = served.client.predict()
        await served.serving.gate.began()
        await served.transport.stop(grace_s=0.01)
        assert (await status_of(call)).code() is grpc.StatusCode.UNAVAILABLE
        assert (await served.observed.answer()).code is Code.CANCELLED
        assert len(served.observed.answers) == 1


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_the_server_works_on_either_event_loop(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    async def many_calls_at_once() -> None:
        async with grpc_serving() as served:
            served.serving.gate.open()
            answers = await asyncio.gather(*(served.client.predict() for _ in range(32)))
            assert len({tuple(scores(answer)) for answer in answers}) == 1
            assert (await status_of(served.client.predict_bytes(b"\xff"))).details()

    run(many_calls_at_once())


async def reflect(client: Client, service: str, **question: str) -> Any:
    call = client.channel.stream_stream(
        f"/{service}/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )(iter([reflection_pb2.ServerReflectionRequest(**question)]))
    return await call.read()


@pytest.mark.parametrize("service", REFLECTION)
async def test_reflection_lists_and_describes_the_services(service: str) -> None:
    async with grpc_serving() as served:
        listed = await reflect(served.client, service, list_services="")
        assert {entry.name for entry in listed.list_services_response.service} == {
            "predictor.Predictor",
            "inference.GRPCInferenceService",
            "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection",
        }
        described = await reflect(
            served.client, service, file_containing_symbol="predictor.Predictor"
        )
        (file,) = described.file_descriptor_response.file_descriptor_proto
        description = descriptor_pb2.FileDescriptorProto.FromString(file)
        assert [method.name for method in description.service[0].method] == ["Predict"]


async def test_an_open_reflection_stream_does_not_hold_up_the_stop() -> None:
    async with grpc_serving() as served:
        call = served.client.channel.stream_stream(f"/{REFLECTION[1]}/ServerReflectionInfo")()
        question = reflection_pb2.ServerReflectionRequest(list_services="")
        await call.write(question.SerializeToString())
        await call.read()
        # The grace is longer than the test may last.
        await served.transport.stop(grace_s=600)
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK


async def test_a_malformed_reflection_message_is_an_invalid_argument_and_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with grpc_serving() as served:
        call = served.client.channel.stream_stream(f"/{REFLECTION[1]}/ServerReflectionInfo")()
        await call.write(b"\xff\xff")
        error = await status_of(call.read())
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "message is not a grpc.reflection" in (error.details() or "")
    assert not caplog.records


async def test_reflection_can_be_turned_off() -> None:
    async with grpc_serving(grpc_options(reflection=False)) as served:
        error = await status_of(reflect(served.client, REFLECTION[0], list_services=""))
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        served.serving.gate.open()
        assert len(scores(await served.client.predict(sample()))) == 2


async def test_an_old_connection_is_told_to_reconnect_and_no_call_fails() -> None:
    options = grpc_options(max_connection_age_s=0.1)
    async with grpc_serving(options) as served:
        served.serving.gate.open()
        await served.client.predict()
        # GOAWAY takes the channel out of READY; the next call connects anew.
        await served.client.channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        await served.client.predict()
