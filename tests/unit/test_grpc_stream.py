import asyncio
from typing import Any

import grpc
import pytest

from scheduler.errors import Code
from scheduler.types import InferRequest
from tests.fixtures.gates import make_request
from tests.fixtures.grpc_calls import Served, grpc_serving, status_of
from tests.fixtures.oip_grpc import OipClient, message_of, scores_of
from transports.grpc.stream import WINDOW

StatusCode = grpc.StatusCode


def open_stream(served: Served, **options: Any) -> Any:
    return OipClient(served.client.channel).stream(**options)


def body(request: InferRequest) -> bytes:
    return message_of(request.inputs, id=request.id).SerializeToString()


async def queued(served: Served, rows: int) -> None:
    while not served.observed.queued_rows or served.observed.queued_rows[-1] != rows:
        served.observed.changed.clear()
        await served.observed.changed.wait()


async def test_answers_come_in_the_order_of_their_requests() -> None:
    async with grpc_serving() as served:
        served.serving.gate.open()
        requests = [make_request(rows, seed=rows) for rows in (5, 1, 3, 0, 2)]
        stream = open_stream(served)
        for request in requests:
            await stream.write(body(request))
        await stream.done_writing()
        for request in requests:
            answer = await stream.read()
            assert answer.error_message == ""
            assert answer.infer_response.id == request.id
            expected = served.serving.backend.score(request)
            assert scores_of(answer.infer_response).tobytes() == expected.tobytes()
        assert await stream.read() is grpc.aio.EOF
        assert await stream.code() is StatusCode.OK
        assert sorted(record.rows for record in served.observed.answers) == [0, 1, 2, 3, 5]


async def test_requests_of_one_stream_share_a_batch() -> None:
    async with grpc_serving() as served:
        held = await served.serving.occupy()
        stream = open_stream(served)
        for seed in (1, 2, 3):
            await stream.write(body(make_request(1, seed)))
        await queued(served, 3)
        served.serving.gate.open()
        held.finish()
        for _ in range(3):
            await stream.read()
        assert served.serving.ran[1:] == [["request-1", "request-2", "request-3"]]


async def test_an_error_answers_its_request_alone() -> None:
    async with grpc_serving() as served:
        served.serving.gate.open()
        wrong = message_of(make_request(1).inputs, model_name="nope", id="wrong")
        stream = open_stream(served)
        bodies = (b"\xff", wrong.SerializeToString(), body(make_request(1, 5)))
        for sent in bodies:
            await stream.write(sent)
        broken, unknown, right = [await stream.read() for _ in bodies]
        assert broken.error_message.startswith("message is not an inference.ModelInferRequest")
        assert unknown.error_message == "no model 'nope'; served: fake"
        assert unknown.infer_response.id == "wrong"
        assert right.error_message == ""
        assert right.infer_response.id == "request-5"
        assert [record.code for record in served.observed.answers] == [
            Code.INVALID_REQUEST,
            Code.MODEL_NOT_FOUND,
            None,
        ]


async def test_a_client_that_leaves_is_never_computed(caplog: pytest.LogCaptureFixture) -> None:
    async with grpc_serving() as served:
        held = await served.serving.occupy()
        stream = open_stream(served)
        for seed in (1, 2):
            await stream.write(body(make_request(1, seed)))
        await queued(served, 2)
        stream.cancel()
        await served.observed.answer(1)
        codes = {record.code for record in served.observed.answers}
        assert codes == {Code.CANCELLED}
        held.finish()
        served.serving.gate.open()
        await served.serving.engine.infer(make_request(1, 7))
        assert served.serving.started == {"request-99", "request-7"}
    assert not caplog.records


async def test_one_stream_has_only_so_much_under_way() -> None:
    async with grpc_serving() as served:
        held = await served.serving.occupy()
        stream, other = open_stream(served), open_stream(served)
        for seed in range(WINDOW + 5):
            await stream.write(body(make_request(1, seed)))
        await queued(served, WINDOW)
        # What another client sends is read after what this one sent, and is not held up by it.
        await other.write(body(make_request(1, 50)))
        await queued(served, WINDOW + 1)
        served.serving.gate.open()
        held.finish()
        answers = [await stream.read() for _ in range(WINDOW + 5)]
        assert [answer.infer_response.id for answer in answers] == [
            f"request-{seed}" for seed in range(WINDOW + 5)
        ]


async def test_a_stop_ends_a_stream_after_what_is_under_way() -> None:
    async with grpc_serving() as served:
        idle = open_stream(served)
        await idle.write(b"\xff")
        await idle.read()
        held = await served.serving.occupy()
        busy = open_stream(served)
        await busy.write(body(make_request(1, 1)))
        await queued(served, 1)
        # The grace is longer than the test may last: an open stream must not use it up.
        stopping = asyncio.create_task(served.transport.stop(grace_s=600))
        error = await status_of(idle.read())
        assert error.code() is StatusCode.UNAVAILABLE
        assert error.details() == "the server is shutting down"
        served.serving.gate.open()
        held.finish()
        assert (await busy.read()).infer_response.id == "request-1"
        assert await busy.code() is StatusCode.UNAVAILABLE
        await stopping


async def test_a_deadline_ends_a_stream_and_what_it_has_under_way() -> None:
    async with grpc_serving() as served:
        await served.serving.occupy()
        stream = open_stream(served, timeout=0.3)
        await stream.write(body(make_request(1, 1)))
        assert await stream.code() is StatusCode.DEADLINE_EXCEEDED
        assert (await served.observed.answer()).code is Code.DEADLINE_EXCEEDED
