from typing import Any

import grpc
import numpy as np
import pytest

from scheduler.asking import Asked, AskedByTask, Asker
from scheduler.engine import Engine
from scheduler.errors import Code, ServingError
from scheduler.options import SchedulerOptions
from scheduler.types import InferRequest, InferResponse, ModelSpec
from tests.fixtures.gates import make_request
from tests.fixtures.grpc_calls import (
    Answers,
    Served,
    grpc_client,
    grpc_options,
    grpc_serving,
    status_of,
)
from tests.fixtures.oip_grpc import OipClient, as_pairs, as_table, message_of, scores_of
from tests.fixtures.requests import DENSE, LENGTHS, VALUES, as_protobuf
from tests.fixtures.wire import make_spec
from transports.codecs.predictor_client import decode_response
from transports.status import STATUS

StatusCode = grpc.StatusCode
FEATURES = ("cat_0", "cat_1")


def oip(served: Served) -> OipClient:
    return OipClient(served.client.channel)


def one_id_each(rows: int = 3) -> InferRequest:
    inputs = {
        DENSE: np.linspace(0, 1, 3 * rows, dtype=np.float32).reshape(rows, 3),
        LENGTHS: np.ones((2, rows), np.int64),
        VALUES: np.arange(2 * rows, dtype=np.int64),
    }
    return make_request(rows, inputs=inputs)


class StubEngine(Engine):
    """Answer every request with one error."""

    def __init__(self, error: BaseException) -> None:
        self.observed = Answers()
        super().__init__(SchedulerOptions(), self.observed)
        self._error = error

    def spec(self, model: str, version: str = "") -> ModelSpec:
        return make_spec()

    def ask(self, request: InferRequest, asker: Asker) -> Asked:
        return AskedByTask(self.infer(request), asker, request.id)

    async def infer(self, request: InferRequest) -> InferResponse:
        raise self._error


async def test_every_encoding_gets_the_scores_of_torchrecs_wire_bit_for_bit() -> None:
    async with grpc_serving() as served:
        served.serving.gate.open()
        request = one_id_each()
        answer = await served.client.predict_bytes(as_protobuf(request))
        expected = decode_response(answer)["default"]
        assert expected.tobytes() == served.serving.backend.score(request).tobytes()
        for tensors in (request.inputs, as_table(request), as_pairs(request, FEATURES)):
            response = await oip(served).infer(tensors)
            assert scores_of(response).shape == (3, 1)
            assert scores_of(response).tobytes() == expected.tobytes()


async def test_jagged_ids_get_their_scores() -> None:
    async with grpc_serving() as served:
        served.serving.gate.open()
        request = make_request(5, seed=3)
        for tensors in (request.inputs, as_pairs(request, FEATURES)):
            response = await oip(served).infer(tensors, model_name="fake", model_version="1")
            assert (response.model_name, response.model_version) == ("fake", "1")
            expected = served.serving.backend.score(request)
            assert scores_of(response).tobytes() == expected.tobytes()
        record = await served.observed.answer()
        assert (record.transport, record.model, record.rows) == ("grpc", "fake", 5)
        assert record.code is None


async def test_outputs_are_those_asked_for() -> None:
    async with grpc_serving() as served:
        served.serving.gate.open()
        client, tensors = oip(served), one_id_each().inputs
        response = await client.infer(tensors, outputs=[{"name": "default"}])
        assert [output.name for output in response.outputs] == ["default"]
        error = await status_of(client.infer(tensors, outputs=[{"name": "nope"}]))
        assert error.code() is StatusCode.INVALID_ARGUMENT
        assert error.details() == "no output 'nope'; the model has default"


FAULTS: list[tuple[str, dict[str, Any]]] = [
    ("an id outside its table", {VALUES: np.array([0, 1, 1000, 3, 4, 5])}),
    ("a length too many", {LENGTHS: np.ones((2, 4), np.int64)}),
    ("too few dense features", {DENSE: np.zeros((3, 2), np.float32)}),
    ("no rows that agree", {DENSE: np.zeros((4, 3), np.float32)}),
]


@pytest.mark.parametrize("change", [change for _, change in FAULTS], ids=[n for n, _ in FAULTS])
async def test_a_fault_has_one_code_and_one_message_in_every_encoding(
    change: dict[str, Any],
) -> None:
    async with grpc_serving() as served:
        served.serving.gate.open()
        request = one_id_each()
        broken = {**request.inputs, **change}
        refused = [await status_of(oip(served).infer(broken))]
        if VALUES in change:  # what the other encodings can say, too
            wrong = make_request(3, inputs=broken)
            refused.append(await status_of(oip(served).infer(as_table(wrong))))
            refused.append(await status_of(oip(served).infer(as_pairs(wrong, FEATURES))))
            refused.append(await status_of(served.client.predict_bytes(as_protobuf(wrong))))
        assert {error.code() for error in refused} == {StatusCode.INVALID_ARGUMENT}
        assert len({error.details() for error in refused}) == 1
        response = await oip(served).infer(request.inputs)
        assert scores_of(response).shape == (3, 1)


async def test_a_missing_input_is_the_same_fault_on_both_wires() -> None:
    async with grpc_serving() as served:
        error = await status_of(oip(served).infer({}))
        other = await status_of(served.client.predict_bytes(b""))
        assert error.code() is other.code() is StatusCode.INVALID_ARGUMENT
        assert (
            error.details() == other.details() == ("float_features: missing; model 'fake' needs it")
        )


async def test_unknown_models_and_versions_are_not_found() -> None:
    async with grpc_serving() as served:
        client, tensors = oip(served), one_id_each().inputs
        error = await status_of(client.infer(tensors, model_name="nope"))
        other = await status_of(served.client.predict(metadata=(("narsil-model", "nope"),)))
        assert error.code() is other.code() is StatusCode.NOT_FOUND
        assert error.details() == other.details()
        error = await status_of(client.infer(tensors, model_name="fake", model_version="7"))
        assert error.code() is StatusCode.NOT_FOUND
        assert "'7'" in (error.details() or "")


@pytest.mark.parametrize("code", list(Code))
async def test_every_code_becomes_its_status_with_the_detail(code: Code) -> None:
    engine = StubEngine(ServingError(code, "what went wrong", 0.5))
    async with grpc_client(engine) as (client, _):
        error = await status_of(OipClient(client.channel).infer(one_id_each().inputs))
        assert error.code() is STATUS[code].grpc
        assert error.details() == "what went wrong"
        assert dict(error.trailing_metadata() or ())["grpc-retry-pushback-ms"] == "500"
        assert [record.code for record in engine.observed.answers] == [code]


async def test_bytes_that_are_no_message_are_an_invalid_argument() -> None:
    async with grpc_serving() as served:
        error = await status_of(oip(served).infer_bytes(b"\xff"))
        assert error.code() is StatusCode.INVALID_ARGUMENT
        assert (await served.observed.answer()).code is Code.INVALID_REQUEST


async def test_a_message_over_the_limit_is_refused_with_limit_and_option() -> None:
    async with grpc_serving(grpc_options(max_message_bytes=1000)) as served:
        error = await status_of(oip(served).infer_bytes(b"\0" * 1001))
        assert error.code() is StatusCode.RESOURCE_EXHAUSTED
        assert "max_message_bytes" in (error.details() or "")


async def test_the_timeout_parameter_is_a_deadline_in_microseconds() -> None:
    async with grpc_serving() as served:
        await served.serving.occupy()
        message = message_of(one_id_each().inputs)
        message.parameters["timeout"].int64_param = 50_000
        error = await status_of(oip(served).call("ModelInfer", message))
        assert error.code() is StatusCode.DEADLINE_EXCEEDED
        assert error.details() == "not answered within 50 ms (timeout)"


async def test_a_priority_outside_the_classes_is_refused() -> None:
    async with grpc_serving() as served:
        message = message_of(one_id_each().inputs)
        message.parameters["priority"].uint64_param = 9
        error = await status_of(oip(served).call("ModelInfer", message))
        assert error.code() is StatusCode.INVALID_ARGUMENT
        assert error.details() == "parameter priority: must be 1 to 4, or 0 for none, got 9"


async def test_the_id_is_echoed_and_observed() -> None:
    async with grpc_serving() as served:
        served.serving.gate.open()
        client, tensors = oip(served), one_id_each().inputs
        call = client.infer(tensors, id="my-request")
        assert (await call).id == "my-request"
        assert dict(await call.trailing_metadata())["x-request-id"] == "my-request"
        assert (await served.observed.answer()).request_id == "my-request"


@pytest.mark.parametrize("odd", ["line\nbreak", "schön"])
async def test_an_id_that_metadata_cannot_carry_is_echoed_all_the_same(odd: str) -> None:
    async with grpc_serving() as served:
        served.serving.gate.open()
        call = oip(served).infer(one_id_each().inputs, id=odd)
        assert (await call).id == odd
        given = dict(await call.trailing_metadata())["x-request-id"]
        assert given == (await served.observed.answer()).request_id
        assert given.isalnum()
