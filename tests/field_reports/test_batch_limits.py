"""Batches are bounded by what they cost, and nothing a client sends makes that cost go wrong."""

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.errors import Code, invalid
from scheduler.options import SchedulerOptions
from scheduler.types import Batch, InferRequest, ModelSpec, TensorSpec
from tests.contract.conftest import encode
from tests.field_reports.asking import ask, code_of, request_of, right
from tests.fixtures.gates import Outputs, make_request, serving
from tests.fixtures.manual_clock import on_manual_clock
from tests.fixtures.requests import DENSE, LENGTHS, VALUES
from tests.fixtures.serving import Served
from tests.fixtures.wires import Wire
from transports.proto.predictor_pb2 import PredictionRequest

pytestmark = pytest.mark.timeout(30)


def pooled(rows: int, ids_a_bag: int, seed: int) -> InferRequest:
    """Return a request with ``ids_a_bag`` ids in every bag."""
    request = make_request(rows, seed)
    lengths = np.full((2, rows), ids_a_bag, np.int64)
    values = np.full(int(lengths.sum()), seed, np.int64)
    return replace(request, inputs={**request.inputs, LENGTHS: lengths, VALUES: values})


@on_manual_clock
async def test_a_batch_holds_as_many_rows_as_it_may_however_few_the_requests() -> None:
    """Field report 7: BentoML #3859, MLServer's source."""
    async with serving(FakeBackend(FakeOptions(max_batch_rows=100))) as server:
        run = await server.occupy()
        asked = [server.ask(make_request(50, seed)) for seed in range(10)]
        server.gate.open()
        run.finish()
        for seed, answer in enumerate(asked):
            assert await server.right(answer, make_request(50, seed))
        assert [batch.rows for batch in server.backend.batches] == [1, 100, 100, 100, 100, 100]


@on_manual_clock
async def test_a_batch_holds_no_more_ids_than_it_may_however_few_its_rows() -> None:
    """Field report 7: BentoML #3859."""
    async with serving(options=SchedulerOptions(max_batch_ids=1000)) as server:
        run = await server.occupy()
        asked = [server.ask(pooled(1, ids_a_bag=200, seed=seed)) for seed in range(10)]
        server.gate.open()
        run.finish()
        await asyncio.gather(*asked)
        batches = [batch.requests for batch in server.backend.batches][1:]
        ids = [sum(request.inputs[VALUES].size for request in batch) for batch in batches]
        assert ids == [800, 800, 800, 800, 800]


@pytest.mark.parametrize(
    "options",
    [
        {"max_queue_rows": 1},
        {"max_batch_ids": 6},
        {"max_request_rows": 1},
        {"priorities": 1},
        {"watchdog_s": 0.0},
        {"mode": "worker"},
    ],
    ids=str,
)
@pytest.mark.parametrize(("max_batch_rows", "lanes"), [(1, 1), (1, 3), (64, 1), (64, 3)])
@on_manual_clock
async def test_every_edge_of_the_options_serves(
    options: dict[str, Any], max_batch_rows: int, lanes: int
) -> None:
    """Field report 8: BentoML #4856, Ray #43288."""
    backend = FakeBackend(FakeOptions(max_batch_rows=max_batch_rows, lanes=lanes))
    async with serving(backend, SchedulerOptions(**options)) as server:
        server.gate.open()
        request = pooled(1, ids_a_bag=3, seed=1)
        assert await server.right(server.ask(request), request)


@on_manual_clock
async def test_a_queue_shorter_than_a_batch_still_lets_a_batch_fill() -> None:
    """Field report 8: Ray #43288, fewer requests let in than a batch needs."""
    backend = FakeBackend(FakeOptions(max_batch_rows=8))
    async with serving(backend, SchedulerOptions(max_queue_rows=2)) as server:
        run = await server.occupy()
        asked = [await server.asked(make_request(1, seed)) for seed in range(8)]
        server.gate.open()
        run.finish()
        await asyncio.gather(*asked)
        assert [len(batch) for batch in server.ran] == [1, 8]


@on_manual_clock
async def test_requests_of_different_pooling_share_a_batch() -> None:
    """Field report 9: Triton #6937 #8156."""
    async with serving() as server:
        run = await server.occupy()
        requests = [pooled(3, ids_a_bag=1 + 4 * (seed % 2), seed=seed) for seed in range(10)]
        asked = [await server.asked(request) for request in requests]
        server.gate.open()
        run.finish()
        for answer, request in zip(asked, requests, strict=True):
            assert await server.right(answer, request)
        assert [len(batch) for batch in server.ran] == [1, 10]


class Weighted(FakeBackend):
    """A fake with an optional input, which it ignores."""

    @property
    def spec(self) -> ModelSpec:
        """The fake's, with the optional input."""
        spec = super().spec
        weights = TensorSpec("weights", np.dtype(np.float32), ("rows",), optional=True)
        return replace(spec, inputs=(*spec.inputs, weights))

    def run(self, batch: Batch) -> Outputs:
        """Score ``batch``, whose requests must all have the optional input, or none."""
        assert len({"weights" in request.inputs for request in batch.requests}) == 1
        return super().run(batch)


@on_manual_clock
async def test_requests_of_different_optional_inputs_form_two_batches_and_block_nobody() -> None:
    """Field report 9: Triton #6937 #8156."""
    async with serving(Weighted(FakeOptions())) as server:
        run = await server.occupy()
        requests = [make_request(2, seed) for seed in range(10)]
        for request in requests[::2]:
            request.inputs["weights"] = np.ones(2, np.float32)  # type: ignore[index]
        asked = [await server.asked(request) for request in requests]
        server.gate.open()
        run.finish()
        for answer, request in zip(asked, requests, strict=True):
            assert await server.right(answer, request)
        assert [len(batch) for batch in server.ran] == [1, 5, 5]


async def test_no_rows_are_an_empty_answer_and_empty_bags_score(
    served_fake: Served, fake_wire: Wire, fake: FakeBackend
) -> None:
    """Field report 10: Triton #5972 #3563."""
    nothing = request_of(served_fake, 0)
    answer = await fake_wire.send(encode(fake_wire, nothing, served_fake))
    assert not answer.codes, answer.detail
    assert answer.scores["default"].shape == (0,)
    empty = request_of(served_fake, 3)
    inputs = {**empty.inputs, LENGTHS: np.zeros((2, 3), np.int64), VALUES: np.zeros(0, np.int64)}
    empty = replace(empty, inputs=inputs)
    assert right(await fake_wire.send(encode(fake_wire, empty, served_fake)), fake, empty)


def of_shape(rows: int, features: int, wire: Wire) -> bytes:
    """Return a request without values that says it has ``rows`` rows."""
    if wire.json:
        columns: dict[str, dict[str, list[int]]] = {
            name: {"lengths": [], "values": []} for name in ("cat_0", "cat_1")
        }
        return orjson.dumps({"rows": rows, DENSE: [], "id_list_features": columns})
    message = PredictionRequest(batch_size=rows)
    message.float_features.num_features = features
    message.id_list_features.num_features = features
    return bytes(message.SerializeToString())


async def test_rows_below_zero_or_beyond_all_memory_are_refused_and_the_next_is_served(
    served_fake: Served, fake_wire: Wire, fake: FakeBackend
) -> None:
    """Field report 10: Triton #5972 #3563."""
    most = 2**31 - 1
    shapes = [(-1, 3), (-most, most), (2, -1), (most, most), (most, 2)]
    if fake_wire.json:
        shapes = [(-1, 0), (-(2**63), 0), (2**31, 0), (2**40, 0), (2**63, 0)]
    for rows, features in shapes:
        answer = await fake_wire.send(of_shape(rows, features, fake_wire))
        assert answer.codes == {Code.INVALID_REQUEST}, (rows, features)
        following = await ask(fake_wire, served_fake, rows=2)
        assert right(following, fake, request_of(served_fake, 2))


class Particular(FakeBackend):
    """A fake whose check, which is our function of cost, raises what the request's id says."""

    def check(self, request: InferRequest) -> None:
        """Check, or raise."""
        if request.id == "refused":
            raise invalid("not this one")
        if request.id == "broken":
            raise ZeroDivisionError("a bug in the plug-in")
        super().check(request)


@on_manual_clock
async def test_a_check_that_raises_fails_its_own_request_and_hangs_nobody() -> None:
    """Field report 11: Ray #66140. What the plug-in refuses is a 400, its own bug a 500."""
    async with serving(Particular(FakeOptions())) as server:
        run = await server.occupy()
        before = await server.asked(make_request(2, 1))
        refused = await server.asked(make_request(2, 2, id="refused"))
        broken = await server.asked(make_request(2, 3, id="broken"))
        assert await code_of(refused) is Code.INVALID_REQUEST
        assert await code_of(broken) is Code.INTERNAL
        after = await server.asked(make_request(2, 4))
        server.gate.open()
        run.finish()
        assert await server.right(before, make_request(2, 1))
        assert await server.right(after, make_request(2, 4))


@on_manual_clock
async def test_one_row_with_more_ids_than_a_batch_may_hold_is_refused_and_named() -> None:
    """Field report 11: Ray #66140. A request whose cost no batch could carry is a 400."""
    async with serving(options=SchedulerOptions(max_batch_ids=100)) as server:
        server.gate.open()
        assert await code_of(server.ask(pooled(3, ids_a_bag=51, seed=1))) is Code.INVALID_REQUEST
        request = pooled(1, ids_a_bag=50, seed=1)
        assert await server.right(server.ask(request), request)
