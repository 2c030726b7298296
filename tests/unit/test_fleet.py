"""Fleets: every arrival meets one end, the same seed the same ones, and the gateway's own rule."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.fleet.balancers import BALANCERS
from loadtest.fleet.batching import Job, Line
from loadtest.fleet.box import Box, Service
from loadtest.fleet.draws import among, exponential
from loadtest.fleet.fleet import simulate
from loadtest.fleet.plan import Death, Hold, Plan, Result, poisson
from scheduler.queue import RequestQueue
from scheduler.types import InferRequest
from scheduler.waiting import Limits, Waiting

BOX = Box(
    Service((1, 100), (0.002, 0.01), exponential), lanes=2, max_batch_rows=64, max_queue_rows=400,
    read_s=1e-4, write_s=5e-5, hop_s=1e-4, wire_s=5e-4,
)  # fmt: skip
TROUBLED = Plan(
    BOX, replicas=4, shards=2, balancers=3, hedge_s=0.01, detect_s=0.05, slower=(1.0, 4.0),
    deaths=(Death(0.3, 1, 0.4), Death(0.32, 2, 0.2), Death(0.5, 5, 9.0)),
    holds=(Hold(0.2, 0, 0.05), Hold(0.21, 0, 0.05), Hold(0.31, 1, 0.05)),
)  # fmt: skip


def run(plan: Plan, rate: float, seed: int = 1, seconds: float = 1.0) -> Result:
    return simulate(plan, poisson(rate, seconds, (seed,)), [1, 10, 30], seed)


def conserved(result: Result) -> bool:
    known = sum(not math.isnan(latency) for latency in result.latencies_s)
    return (
        result.left == 0 and known == result.answered and result.arrived == len(result.latencies_s)
    )


@pytest.mark.parametrize("balancer", BALANCERS)
@pytest.mark.parametrize("rate", [500, 4_000])
def test_every_arrival_is_answered_refused_or_failed_whatever_happens(
    balancer: str, rate: float
) -> None:
    result = run(dataclasses.replace(TROUBLED, balancer=balancer), rate)
    assert conserved(result)
    assert result.answered > 0
    assert result.hedged > 0
    assert result.retried > 0
    assert min(result.latencies_s) >= BOX.wire_s


@given(st.integers(0, 2**32), st.integers(50, 1000))
@settings(max_examples=3)
def test_the_same_seed_gives_the_same_result_and_another_another(seed: int, rate: int) -> None:
    first, again = run(TROUBLED, rate, seed), run(TROUBLED, rate, seed)
    np.testing.assert_equal(dataclasses.asdict(first), dataclasses.asdict(again))
    assert conserved(first)
    assert run(TROUBLED, rate, seed + 1).latencies_s != first.latencies_s


def test_a_dead_fleet_fails_what_it_is_sent_and_serves_again_afterwards() -> None:
    plan = Plan(BOX, replicas=2, deaths=(Death(0.2, 0, 0.3), Death(0.2, 1, 0.3)))
    result = run(plan, rate=300)
    failed = np.isnan(result.latencies_s)
    arrivals = np.array(poisson(300, 1.0, (1,)))
    assert conserved(result)
    assert failed[(arrivals > 0.201) & (arrivals < 0.499)].all()
    assert not failed[arrivals > 0.501].any()


def test_without_retries_a_death_loses_what_is_under_way_and_with_one_nothing() -> None:
    deaths = (Death(0.5, 0, 0.1),)
    lost = run(Plan(BOX, replicas=3, retries=0, detect_s=0.02, deaths=deaths), rate=2000)
    kept = run(Plan(BOX, replicas=3, retries=1, detect_s=0.02, deaths=deaths), rate=2000)
    assert lost.failed > 0
    assert (kept.failed, kept.retried > 0) == (0, True)


def test_hedging_hides_a_slow_replica_and_costs_second_answers() -> None:
    slow = Plan(BOX, replicas=5, balancer="random", slower=(20.0,))
    hedged = dataclasses.replace(slow, hedge_s=0.03)
    without, with_ = run(slow, rate=200, seconds=5.0), run(hedged, rate=200, seconds=5.0)
    assert with_.percentile_ms(99) < 0.7 * without.percentile_ms(99)
    assert 0 < with_.hedged < with_.arrived / 2


def test_lanes_held_at_once_hurt_and_one_after_the_other_do_not() -> None:
    box = dataclasses.replace(BOX, lanes=1)
    at_once = tuple(Hold(0.5, server, 0.1) for server in range(8))
    in_turn = tuple(Hold(0.1 + 0.11 * server, server, 0.1) for server in range(8))
    worst = [
        run(Plan(box, replicas=8, balancer="least outstanding", holds=holds), 800).percentile_ms(90)
        for holds in (in_turn, at_once)
    ]
    assert worst[0] < 0.7 * worst[1]


def test_measured_spread_is_drawn_from_what_was_measured() -> None:
    box = Box(Service((1,), (1.0,), among([0.5, 2.0])), max_batch_rows=1)
    result = simulate(Plan(box), [10.0 * n for n in range(400)], [1], 0)
    assert set(np.round(result.latencies_s, 9)) == {0.5, 2.0}


steps = st.lists(
    st.one_of(st.integers(1, 40), st.tuples(st.just("take"), st.integers(1, 3))), max_size=80
)


@given(steps)
@settings(max_examples=60)
def test_batches_are_those_of_the_gateways_own_queue(asked: list[int | tuple[str, int]]) -> None:
    line, queue = Line(64, 200), RequestQueue(Limits(200, 1 << 40, 64))
    numbers: dict[Job, int] = {}
    for number, step in enumerate(asked):
        if isinstance(step, tuple):
            ours = [numbers[job] for job in line.take(step[1])]
            taken = queue.take(float(number), lanes=step[1])
            assert ours == [int(piece.waiting.request.id) for piece in taken.batch]
            continue
        job = Job(step)
        numbers[job] = number
        waiting = Waiting(InferRequest("", step, {}, str(number)), float(number))
        if line.push(job):
            queue.push(waiting)
        else:
            assert queue.rows + step > 200
        assert line.rows == queue.rows
        assert line.full == queue.full
