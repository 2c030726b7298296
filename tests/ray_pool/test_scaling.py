"""Replicas come and go by how much waits."""

import asyncio

import pytest

from backends.ray_pool.scaling import Bounds, Scaler
from tests.fixtures.requests import random_request
from tests.ray_pool.conftest import Serve

BOUNDS = Bounds(least=1, most=3, up_rows=10, up_s=1.0, down_s=5.0)


def test_one_is_added_once_enough_has_waited_for_long_enough() -> None:
    scaler = Scaler(BOUNDS, now=0.0)
    assert scaler.observe(0.0, 11, 1, [1]) == 0
    assert scaler.observe(0.9, 11, 1, [1]) == 0
    assert scaler.observe(1.0, 11, 1, [1]) == 1


def test_what_waits_is_measured_by_replica_and_a_calm_moment_begins_the_wait_anew() -> None:
    scaler = Scaler(BOUNDS, now=0.0)
    assert scaler.observe(0.0, 20, 2, [1, 1]) == 0
    assert scaler.observe(2.0, 20, 2, [1, 1]) == 0
    assert scaler.observe(2.1, 21, 2, [1, 1]) == 0
    assert scaler.observe(3.0, 21, 2, [1, 1]) == 1


def test_after_one_was_added_another_takes_as_long_again_and_there_are_never_too_many() -> None:
    scaler = Scaler(BOUNDS, now=0.0)
    assert scaler.observe(1.0, 100, 1, [1]) == 1
    assert scaler.observe(1.5, 100, 2, [1, 1]) == 0
    assert scaler.observe(2.0, 100, 2, [1, 1]) == 1
    assert scaler.observe(9.0, 100, 3, [1, 1, 1]) == 0


def test_one_goes_when_fewer_had_sufficed_for_long_enough_but_never_the_last() -> None:
    scaler = Scaler(BOUNDS, now=0.0)
    assert scaler.observe(4.0, 0, 2, [1, 1]) == 0  # both were needed
    assert scaler.observe(8.0, 0, 1, [1, 1]) == 0
    assert scaler.observe(9.0, 0, 1, [1, 1]) == -1
    assert scaler.observe(99.0, 0, 0, [1]) == 0


def test_what_is_missing_is_added_at_once() -> None:
    assert Scaler(BOUNDS, now=0.0).observe(0.0, 0, 0, []) == 1


@pytest.mark.slow
async def test_a_pool_grows_under_load_and_shrinks_after_it(serve: Serve) -> None:
    options = ("lanes=1", "compute_s=0.02", "max_batch_rows=4")
    scaling = {"scale_up_rows": 4, "scale_up_s": 0.2, "scale_down_s": 1.0}
    async with serve(max_replicas=2, inner_options=options, **scaling) as (engine, backend):
        assert backend.lanes == 4
        assert backend.lanes_for(0) == 2
        spec = engine.spec("")
        while backend.lanes_for(0) < 4:
            requests = [random_request(spec, 4, seed=number) for number in range(30)]
            await asyncio.gather(*map(engine.infer, requests))
        while backend.lanes_for(0) > 2:  # noqa: ASYNC110  # the pool has no event to wait for
            await asyncio.sleep(0.05)
        await engine.infer(random_request(spec, 1, seed=1))
