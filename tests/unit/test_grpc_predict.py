import asyncio
import math
from typing import Any

import grpc
import numpy as np
import pytest

from scheduler.asking import Asked, AskedByTask, Asker
from scheduler.engine import Engine
from scheduler.errors import Code, ServingError
from scheduler.options import SchedulerOptions
from scheduler.types import InferRequest, InferResponse, ModelSpec
from tests.fixtures.grpc_calls import (
    Answers,
    Served,
    grpc_client,
    grpc_options,
    grpc_serving,
    scores,
    status_of,
)
from tests.fixtures.wire import Sample, make_spec, sample
from transports.codecs.predictor import decode_request
from transports.status import STATUS

StatusCode = grpc.StatusCode


class StubEngine(Engine):
    """Answer every request with one error."""

    def __init__(self, error: BaseException) -> None:
        self.observed = Answers()
        super().__init__(SchedulerOptions(), self.observed)
        self._error = error

    def spec(self, model: str, version: str = "") -> ModelSpec:
        return make_spec()

    def ask(self, request: InferRequest, asker: Asker) -> Asked:
        if isinstance(self._error, Exception):
            raise self._error
        return AskedByTask(self.infer(request), asker, request.id)

    async def infer(self, request: InferRequest) -> InferResponse:
        raise self._error


def right_scores(served: Served, asked: Sample) -> list[float]:
    request = decode_request(asked.message().SerializeToString(), "fake")
    return [float(score) for score in served.serving.backend.score(request)]


def trailers_of(call: grpc.aio.AioRpcError) -> dict[str, str]:
    return dict(call.trailing_metadata() or ())


async def test_a_request_gets_its_scores() -> None:
    async with grpc_serving() as served:
        served.serving.gate.open()
        assert scores(await served.client.predict()) == right_scores(served, sample())
        record = await served.observed.answer()
        assert (record.transport, record.model, record.rows) == ("grpc", "fake", 2)
        assert record.code is None
        assert record.duration_s > 0
        assert len(served.observed.answers) == 1


async def test_zero_rows_get_no_scores() -> None:
    async with grpc_serving() as served:
        nothing = Sample(dense=[], bags={"user": [], "item": []})
        assert scores(await served.client.predict(nothing)) == []


async def test_nan_and_infinity_pass_in_both_directions() -> None:
    async with grpc_serving() as served:
        served.serving.gate.open()
        odd = Sample(
            dense=[[math.nan] * 3, [math.inf] * 3], bags={"user": [[], []], "item": [[], []]}
        )
        not_a_number, infinite = scores(await served.client.predict(odd))
        assert math.isnan(not_a_number)
        assert infinite == math.inf


async def test_a_message_over_grpcs_default_of_4_mib_is_answered() -> None:
    async with grpc_serving() as served:
        served.serving.gate.open()
        bag = [int(entry) for entry in np.arange(1_500) % 1000]
        large = Sample(dense=[[0.0] * 3] * 1000, bags={"user": [bag] * 1000, "item": [[]] * 1000})
        assert scores(await served.client.predict(large)) == right_scores(served, large)


async def test_the_clients_request_id_comes_back_and_is_observed() -> None:
    async with grpc_serving() as served:
        served.serving.gate.open()
        call = served.client.predict(metadata=(("x-request-id", "my-request"),))
        await call
        assert dict(await call.trailing_metadata())["x-request-id"] == "my-request"
        assert (await served.observed.answer()).request_id == "my-request"


async def test_a_request_without_an_id_is_given_one() -> None:
    async with grpc_serving() as served:
        served.serving.gate.open()
        call = served.client.predict()
        await call
        given = dict(await call.trailing_metadata())["x-request-id"]
        assert given == (await served.observed.answer()).request_id != ""


async def test_an_overlong_request_id_is_cut() -> None:
    async with grpc_serving() as served:
        call = served.client.predict_bytes(b"\xff", metadata=(("x-request-id", "i" * 4000),))
        assert trailers_of(await status_of(call))["x-request-id"] == "i" * 128


async def test_metadata_selects_the_model() -> None:
    async with grpc_serving() as served:
        served.serving.gate.open()
        await served.client.predict(metadata=(("narsil-model", "fake"),))
        error = await status_of(served.client.predict(metadata=(("narsil-model", "other"),)))
        assert error.code() is StatusCode.NOT_FOUND
        assert "'other'" in (error.details() or "")
        record = await served.observed.answer(1)
        # Not the name asked for: clients must not be able to make up metric labels.
        assert (record.model, record.code) == ("", Code.MODEL_NOT_FOUND)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"\xff", "not a predictor.PredictionRequest"),
        (sample().message().SerializeToString()[:-1], "not a predictor.PredictionRequest"),
        (b"", "float_features"),
    ],
)
async def test_a_bad_request_is_an_invalid_argument(body: bytes, words: str) -> None:
    async with grpc_serving() as served:
        error = await status_of(served.client.predict_bytes(body))
        assert error.code() is StatusCode.INVALID_ARGUMENT
        assert words in (error.details() or "")
        record = await served.observed.answer()
        assert (record.model, record.code) == ("fake", Code.INVALID_REQUEST)
        assert record.detail == error.details()


async def test_a_message_over_the_limit_is_refused_with_limit_and_option() -> None:
    async with grpc_serving(grpc_options(max_message_bytes=1000)) as served:
        error = await status_of(served.client.predict_bytes(b"\0" * 1001))
        assert error.code() is StatusCode.RESOURCE_EXHAUSTED
        for word in ("1001", "1000", "max_message_bytes"):
            assert word in (error.details() or "")
        assert (await served.observed.answer()).code is Code.PAYLOAD_TOO_LARGE


async def test_a_message_of_the_limit_reaches_the_codec() -> None:
    async with grpc_serving(grpc_options(max_message_bytes=1000)) as served:
        error = await status_of(served.client.predict_bytes(b"\0" * 1000))
        assert error.code() is StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
async def test_a_message_far_over_the_limit_is_refused_by_grpc(
    compression: grpc.Compression,
) -> None:
    async with grpc_serving(grpc_options(max_message_bytes=1000)) as served:
        error = await status_of(
            served.client.predict_bytes(b"\0" * 100_000, compression=compression)
        )
        assert error.code() is StatusCode.RESOURCE_EXHAUSTED


async def test_a_deadline_that_passes_in_the_queue_means_the_request_never_runs() -> None:
    async with grpc_serving() as served:
        first = served.client.predict(metadata=(("x-request-id", "first"),))
        running = await served.serving.gate.began()
        error = await status_of(served.client.predict(timeout=0.25))
        assert error.code() is StatusCode.DEADLINE_EXCEEDED
        assert (await served.observed.answer()).code is Code.DEADLINE_EXCEEDED
        running.finish()
        await first
        assert served.serving.ran == [["first"]]


async def test_a_client_that_cancels_is_never_computed() -> None:
    async with grpc_serving() as served:
        first = served.client.predict(metadata=(("x-request-id", "first"),))
        running = await served.serving.gate.began()
        second = served.client.predict()
        while not served.observed.queued_rows or served.observed.queued_rows[-1] != 2:
            served.observed.changed.clear()
            await served.observed.changed.wait()
        second.cancel()
        record = await served.observed.answer()
        assert (record.code, record.rows) == (Code.CANCELLED, 2)
        assert served.observed.drops == ["cancelled"]
        running.finish()
        await first
        assert served.serving.ran == [["first"]]
        assert len(served.observed.answers) == 2


async def test_a_client_that_leaves_while_computed_leaves_its_neighbours_alone() -> None:
    async with grpc_serving() as served:
        leaver = served.client.predict()
        running = await served.serving.gate.began()
        leaver.cancel()
        assert (await served.observed.answer()).code is Code.CANCELLED
        running.finish()
        served.serving.gate.open()
        assert scores(await served.client.predict()) == right_scores(served, sample())


async def test_a_request_cancelled_inside_the_server_still_gets_a_status() -> None:
    engine = StubEngine(asyncio.CancelledError())
    async with grpc_client(engine) as (client, _):
        error = await status_of(client.predict())
        assert error.code() is StatusCode.CANCELLED
        assert error.details() == "the server cancelled the request"
        assert [record.code for record in engine.observed.answers] == [Code.CANCELLED]


async def test_an_unexpected_error_is_logged_with_the_id_and_not_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = StubEngine(ZeroDivisionError("a secret"))
    async with grpc_client(engine) as (client, _):
        error = await status_of(client.predict(metadata=(("x-request-id", "my-request"),)))
        assert error.code() is StatusCode.INTERNAL
        assert error.details() == "internal error; request id my-request"
        assert [record.code for record in engine.observed.answers] == [Code.INTERNAL]
    (logged,) = [record for record in caplog.records if record.name == "transports.grpc.call"]
    assert "my-request" in logged.getMessage()
    assert logged.exc_info is not None
    assert "a secret" in str(logged.exc_info[1])


@pytest.mark.parametrize("code", list(Code))
async def test_every_code_becomes_its_status_with_the_detail(code: Code) -> None:
    engine = StubEngine(ServingError(code, "what went wrong"))
    async with grpc_client(engine) as (client, _):
        error = await status_of(client.predict())
        assert error.code() is STATUS[code].grpc
        assert error.details() == "what went wrong"
        assert "grpc-retry-pushback-ms" not in trailers_of(error)
        assert [record.code for record in engine.observed.answers] == [code]


async def test_a_refusal_says_when_to_retry() -> None:
    async with grpc_client(StubEngine(ServingError(Code.OVERLOADED, "full", 0.0121))) as (
        client,
        _,
    ):
        assert trailers_of(await status_of(client.predict()))["grpc-retry-pushback-ms"] == "13"


async def test_a_long_detail_is_cut_to_what_trailers_carry() -> None:
    detail = "\u00e4\n" * 20_000
    async with grpc_client(StubEngine(ServingError(Code.INVALID_REQUEST, detail))) as (client, _):
        error = await status_of(client.predict())
        assert error.code() is StatusCode.INVALID_ARGUMENT
        assert error.details() == detail[:1024]


async def test_another_method_is_unimplemented() -> None:
    async with grpc_serving() as served:
        call: Any = served.client.channel.unary_unary("/predictor.Predictor/Other")(b"")
        assert (await status_of(call)).code() is StatusCode.UNIMPLEMENTED
