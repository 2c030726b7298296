"""The right scores, alone and together, over every wire, from every backend."""

import asyncio

import numpy as np
import pytest

from scheduler.rows import cut
from scheduler.types import Array, Batch, InferRequest
from tests.contract.conftest import encode
from tests.fixtures.requests import random_request
from tests.fixtures.scores import assert_same_scores
from tests.fixtures.serving import Served
from tests.fixtures.wires import EVERY_WIRE, Wire, connect

# As its fixtures do: servers are shared.
pytestmark = pytest.mark.asyncio(loop_scope="module")


def alone(served: Served, request: InferRequest) -> Array:
    """Return the scores of ``request`` run directly, with no neighbours."""
    return served.backend.prepare(Batch((request,)))()["default"]


@pytest.mark.parametrize("rows", [1, 2, 7])
async def test_a_request_gets_the_scores_of_the_backend_run_directly(
    served: Served, wire: Wire, rows: int
) -> None:
    request = random_request(served.engine.spec(""), rows, seed=rows)
    answer = await wire.send(encode(wire, request, served))
    assert not answer.codes, answer.detail
    assert_same_scores(answer.scores["default"], alone(served, request))


async def test_a_request_larger_than_a_batch_is_answered_whole(served: Served, wire: Wire) -> None:
    spec = served.engine.spec("")
    most = spec.max_batch_rows
    request = random_request(spec, rows=2 * most + 5, seed=9)
    answer = await wire.send(encode(wire, request, served))
    assert not answer.codes, answer.detail
    pieces = [(0, most), (most, 2 * most), (2 * most, request.rows)]
    wanted = [alone(served, cut(spec, request, start, stop)) for start, stop in pieces]
    assert_same_scores(answer.scores["default"], np.concatenate(wanted))


async def test_zero_rows_get_an_empty_answer(served: Served, wire: Wire) -> None:
    request = random_request(served.engine.spec(""), 0, seed=0)
    answer = await wire.send(encode(wire, request, served))
    assert not answer.codes, answer.detail
    assert answer.scores["default"].shape == (0,)


async def test_requests_of_all_wires_at_once_each_get_their_own_scores(served: Served) -> None:
    spec = served.engine.spec("")

    async def ask(wire: Wire, number: int) -> None:
        request = random_request(spec, rows=1 + number % 5, seed=number)
        answer = await wire.send(encode(wire, request, served))
        assert not answer.codes, answer.detail
        assert_same_scores(answer.scores["default"], alone(served, request))

    async def client(name: str, number: int) -> None:
        async with connect(name, served) as wire:
            await asyncio.gather(*(ask(wire, 100 * number + n) for n in range(20)))

    async with asyncio.TaskGroup() as group:
        for number, name in enumerate(EVERY_WIRE):
            group.create_task(client(name, number))
