import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import grpc
import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.engine import Engine
from scheduler.observer import Observer
from scheduler.options import SchedulerOptions
from tests.fixtures.gates import Watched, make_request
from tests.fixtures.grpc_calls import Answers, grpc_client, grpc_serving, status_of
from tests.fixtures.oip_grpc import SERVICE, OipClient
from transports.proto import open_inference_pb2 as oip
from transports.statistics import Statistics

StatusCode = grpc.StatusCode


@dataclass(frozen=True)
class Managed:
    engine: Engine
    client: OipClient


@contextlib.asynccontextmanager
async def managed(observer: Observer | None = None) -> AsyncIterator[Managed]:
    """Serve two models, one of them in two versions; nothing is loaded or ready yet."""
    engine = Engine(SchedulerOptions(max_delay_s=0.002), observer or Observer())
    async with grpc_client(engine) as (client, _):
        yield Managed(engine, OipClient(client.channel))
    await engine.close(0)


async def load_all(engine: Engine) -> None:
    await engine.load(Watched("first", version="1"))
    await engine.load(Watched("first", version="2"))
    await engine.load(FakeBackend(FakeOptions(name="second")))
    engine.open()


async def ready(served: Managed, name: str, version: str = "") -> bool:
    request = oip.ModelReadyRequest(name=name, version=version)
    return bool((await served.client.call("ModelReady", request)).ready)


async def index(served: Managed, **fields: Any) -> list[tuple[str, str, str]]:
    answer = await served.client.call("RepositoryIndex", oip.RepositoryIndexRequest(**fields))
    return [(model.name, model.version, model.state) for model in answer.models]


async def test_readiness_follows_the_engine_and_liveness_outlasts_it() -> None:
    async with managed() as served:
        assert (await served.client.call("ServerLive")).live
        assert not (await served.client.call("ServerReady")).ready
        assert not await ready(served, "first")
        await load_all(served.engine)
        assert (await served.client.call("ServerReady")).ready
        assert await ready(served, "first")
        assert await ready(served, "first", "1")
        assert not await ready(served, "first", "3")
        assert not await ready(served, "nope")
        served.engine.drain()
        assert not (await served.client.call("ServerReady")).ready
        assert not await ready(served, "first")
        assert (await served.client.call("ServerLive")).live


async def test_the_server_names_the_extensions_it_has() -> None:
    async with managed() as served:
        plain = await served.client.call("ServerMetadata")
        assert (plain.name, plain.version) == ("narsil", version("narsil"))
        assert list(plain.extensions) == ["model_configuration", "schedule_policy"]
    async with managed(Statistics(Observer())) as served:
        counting = await served.client.call("ServerMetadata")
        assert list(counting.extensions) == [*plain.extensions, "statistics"]


async def test_a_model_is_described_with_all_its_versions() -> None:
    async with managed() as served:
        await load_all(served.engine)
        request = oip.ModelMetadataRequest(name="first")
        metadata = await served.client.call("ModelMetadata", request)
        assert (metadata.name, metadata.platform) == ("first", "narsil")
        assert list(metadata.versions) == ["1", "2"]
        assert [tensor.name for tensor in metadata.inputs] == [
            "float_features",
            "id_list_features",
        ]
        assert metadata.properties["scheduler.mode"] == "batch"
        assert "encodings" in metadata.properties


async def test_a_config_says_how_requests_are_batched() -> None:
    async with managed() as served:
        await load_all(served.engine)
        request = oip.ModelConfigRequest(name="first", version="1")
        config = (await served.client.call("ModelConfig", request)).config
        assert config.max_batch_size == 16384  # the rows of one request, which may be split
        batching = config.dynamic_batching
        assert list(batching.preferred_batch_size) == [1024]
        assert batching.max_queue_delay_microseconds == 2000
        assert (batching.priority_levels, batching.default_priority_level) == (4, 1)
        assert config.parameters["scheduler.max_delay_s"].string_value == "0.002"


async def test_a_model_of_one_request_at_a_time_has_no_dynamic_batching() -> None:
    async with managed() as served:
        await served.engine.load(FakeBackend(FakeOptions()), SchedulerOptions(mode="worker"))
        served.engine.open()
        config = (await served.client.call("ModelConfig")).config
        assert not config.HasField("dynamic_batching")


@pytest.mark.parametrize("method", ["ModelMetadata", "ModelConfig"])
async def test_descriptions_of_what_is_not_served_are_not_found(method: str) -> None:
    async with managed() as served:
        error = await status_of(served.client.call(method))
        assert error.code() is StatusCode.UNAVAILABLE
        await load_all(served.engine)
        for asked in ({"name": "nope"}, {"name": "first", "version": "3"}):
            request = getattr(oip, f"{method}Request")(**asked)
            error = await status_of(served.client.call(method, request))
            assert error.code() is StatusCode.NOT_FOUND
            assert "x-request-id" in dict(error.trailing_metadata() or ())


async def test_the_index_has_every_version_and_its_state() -> None:
    async with managed() as served:
        assert await index(served) == []
        await load_all(served.engine)
        everything = [("first", "1", "READY"), ("first", "2", "READY"), ("second", "1", "READY")]
        assert await index(served) == await index(served, ready=True) == everything
        served.engine.drain()
        assert {state for _, _, state in await index(served)} == {"UNAVAILABLE"}
        assert await index(served, ready=True) == []


async def test_statistics_count_requests_rows_and_batches() -> None:
    observed = Answers()
    async with managed(Statistics(observed)) as served:
        await load_all(served.engine)
        for rows in (1, 3, 3):
            inputs = make_request(rows, seed=rows).inputs
            await served.client.infer(inputs, model_name="second")
        await status_of(served.client.infer({}, model_name="second"))
        request = oip.ModelStatisticsRequest(name="second")
        (figures,) = (await served.client.call("ModelStatistics", request)).model_stats
        assert (figures.name, figures.version) == ("second", "1")
        assert (figures.inference_count, figures.execution_count) == (7, 3)
        stats = figures.inference_stats
        assert (stats.success.count, stats.fail.count, stats.queue.count) == (3, 1, 3)
        assert stats.success.ns > stats.compute_infer.ns > 0
        computes = (stats.compute_input, stats.compute_infer, stats.compute_output)
        assert [spent.count for spent in computes] == [3, 3, 3]
        sizes = [(size.batch_size, size.compute_infer.count) for size in figures.batch_stats]
        assert sizes == [(1, 1), (3, 2)]
    assert len(observed.answers) == 4  # the observer behind hears of all of it, too


@pytest.mark.parametrize(
    ("asked", "counted"),
    [
        ({}, [("first", "1", 3), ("first", "2", 4), ("second", "1", 0)]),
        ({"name": "first"}, [("first", "1", 3), ("first", "2", 4)]),
        ({"name": "first", "version": "1"}, [("first", "1", 3)]),
    ],
)
async def test_statistics_are_of_the_versions_asked_for_and_of_all_if_none_is(
    asked: dict[str, str], counted: list[tuple[str, str, int]]
) -> None:
    async with managed(Statistics(Observer())) as served:
        await load_all(served.engine)
        for rows, version in ((3, "1"), (4, "")):
            inputs = make_request(rows).inputs
            await served.client.infer(inputs, model_name="first", model_version=version)
        request = oip.ModelStatisticsRequest(**asked)
        figures = (await served.client.call("ModelStatistics", request)).model_stats
        assert [(one.name, one.version, one.inference_count) for one in figures] == counted
        answered = [one.inference_stats.success.count for one in figures]
        assert answered == [int(rows > 0) for _, _, rows in counted]
        error = await status_of(
            served.client.call("ModelStatistics", oip.ModelStatisticsRequest(name="nope"))
        )
        assert error.code() is StatusCode.NOT_FOUND


async def test_statistics_that_nobody_keeps_are_unimplemented() -> None:
    async with managed() as served:
        error = await status_of(served.client.call("ModelStatistics"))
        assert error.code() is StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("method", ["TraceSetting", "LogSettings", "SystemSharedMemoryStatus"])
async def test_what_only_other_servers_do_is_unimplemented(method: str) -> None:
    async with managed() as served:
        call: Any = served.client.channel.unary_unary(f"/{SERVICE}/{method}")(b"")
        assert (await status_of(call)).code() is StatusCode.UNIMPLEMENTED


async def test_a_message_of_another_kind_is_an_invalid_argument() -> None:
    async with grpc_serving() as served:
        call: Any = served.client.channel.unary_unary(f"/{SERVICE}/ModelMetadata")(b"\xff")
        error = await status_of(call)
        assert error.code() is StatusCode.INVALID_ARGUMENT
        assert error.details() == "message is not a inference.ModelMetadataRequest"


async def test_an_unexpected_error_is_logged_and_not_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with managed() as served:
        await load_all(served.engine)

        def broken(model: str, version: str = "") -> Any:
            raise ZeroDivisionError("a secret")

        served.engine.spec = broken  # type: ignore[method-assign]  # no fault of ours is at hand
        error = await status_of(served.client.call("ModelMetadata"))
        assert error.code() is StatusCode.INTERNAL
        assert "secret" not in (error.details() or "")
    assert "a secret" in caplog.text
