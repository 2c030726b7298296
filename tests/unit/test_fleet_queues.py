"""The simulation against what queueing theory knows: M/M/1, M/D/1, M/M/c, batches, two choices."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from loadtest.fleet.box import Box, Service
from loadtest.fleet.draws import Draws, Law, constant, exponential
from loadtest.fleet.fleet import SERVICES, simulate
from loadtest.fleet.plan import Plan, Result, poisson

ALONE = 1  # rows of a batch, where requests of one row share none
UNBOUNDED = 1 << 40


def simulated(box: Box, rate: float, seconds: float, **plan: object) -> Result:
    return simulate(Plan(box, **plan), poisson(rate, seconds, (7,)), [1], seed=3)  # type: ignore[arg-type]  # fields of any type


def mean_s(box: Box, rate: float, requests: int = 8_000) -> float:
    result = simulated(box, rate, requests / rate)
    assert result.left == 0
    return result.mean_ms / 1e3


def test_one_lane_without_batches_is_lindleys_recursion() -> None:
    """W' = max(0, W - gap) + service: whatever the laws are, to the last request."""
    box = Box(Service((1,), (1.0,), exponential), max_batch_rows=ALONE)
    arrivals = poisson(0.9, 3000, (7,))
    services = Draws(exponential, (3, SERVICES, 1))
    latency_s, before_s, expected = 0.0, 0.0, []
    for arrived_s in arrivals:
        latency_s = max(0.0, latency_s - (arrived_s - before_s)) + services.next()
        before_s = arrived_s
        expected.append(latency_s)
    result = simulate(Plan(box), arrivals, [1], seed=3)
    np.testing.assert_allclose(result.latencies_s, expected, rtol=1e-9)


def m_m_1_s(load: float) -> float:
    return 1 / (1 - load)


def m_d_1_s(load: float) -> float:
    return 1 + load / (2 * (1 - load))


@pytest.mark.parametrize(("law", "expected"), [(exponential, m_m_1_s), (constant, m_d_1_s)])
@pytest.mark.parametrize("load", [0.3, 0.6])
def test_m_m_1_and_m_d_1(law: Law, expected: Callable[[float], float], load: float) -> None:
    box = Box(Service((1,), (1.0,), law), max_batch_rows=ALONE)
    assert mean_s(box, load) == pytest.approx(expected(load), rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("law", "expected"), [(exponential, m_m_1_s), (constant, m_d_1_s)])
def test_m_m_1_and_m_d_1_over_many_requests(law: Law, expected: Callable[[float], float]) -> None:
    box = Box(Service((1,), (1.0,), law), max_batch_rows=ALONE)
    assert mean_s(box, 0.7, requests=400_000) == pytest.approx(expected(0.7), rel=0.03)


def erlang_c_s(lanes: int, load: float) -> float:
    offered = lanes * load
    terms = [offered**k / math.factorial(k) for k in range(lanes)]
    last = offered**lanes / math.factorial(lanes) / (1 - load)
    return 1 + last / (sum(terms) + last) / (lanes * (1 - load))


def test_m_m_c_by_erlangs_formula() -> None:
    box = Box(Service((1,), (1.0,), exponential), lanes=4, max_batch_rows=ALONE)
    assert mean_s(box, 4 * 0.7) == pytest.approx(erlang_c_s(4, 0.7), rel=0.05)


@pytest.mark.parametrize("rate", [0.2, 1.0, 5.0])
def test_batches_without_a_bound_make_nobody_wait_longer_than_one_batch(rate: float) -> None:
    """A batch takes 1 s whatever is in it; who comes meanwhile waits for its end.

    The lane is busy 1 s in every 1 + P(nobody came) / rate, and an arrival then waits 0.5 s.
    """
    busy = 1 / (1 + math.exp(-rate) / rate)
    box = Box(Service((1,), (1.0,)), max_batch_rows=UNBOUNDED)
    assert mean_s(box, rate) == pytest.approx(1 + busy / 2, rel=0.03)


@pytest.mark.parametrize("lanes", [1, 3])
def test_at_full_load_every_batch_is_full(lanes: int) -> None:
    box = Box(Service((1,), (1.0,)), lanes=lanes, max_batch_rows=8, max_queue_rows=100)
    assert box.capacity(1) == 8 * lanes
    result = simulated(box, rate=3.0 * lanes * 8, seconds=100)
    # What waits at the end is answered, too.
    assert (result.answered - 100) / result.seconds == pytest.approx(8 * lanes, rel=0.02)
    assert result.requests_a_batch == pytest.approx(8, rel=0.02)
    assert result.refused == result.arrived - result.answered > result.answered


def test_an_affine_service_has_the_throughput_that_its_full_batches_have() -> None:
    box = Box(Service((1, 11), (0.2, 0.3)), max_batch_rows=21, max_queue_rows=200)
    assert box.service.of(21) == pytest.approx(0.4)
    result = simulated(box, rate=200, seconds=60)
    assert (result.answered - 200) / result.seconds == pytest.approx(21 / 0.4, rel=0.02)


@pytest.mark.slow
def test_two_choices_are_as_good_as_the_mean_field_says() -> None:
    """Mitzenmacher, "The power of two choices", 1996: a sum over 2**i - 2."""
    load, servers = 0.8, 100
    expected = sum(load ** (2**i - 2) for i in range(1, 12))
    box = Box(Service((1,), (1.0,), exponential), max_batch_rows=ALONE)
    for balancer, mean in (("power of two", expected), ("random", 1 / (1 - load))):
        plan = {"replicas": servers, "balancer": balancer}
        result = simulated(box, load * servers, 700.0, **plan)
        steady = np.asarray(result.latencies_s)[len(result.latencies_s) // 4 :]
        assert steady.mean() == pytest.approx(mean, rel=0.1), balancer


def test_the_slowest_of_several_shards_is_waited_for() -> None:
    box = Box(Service((1,), (1.0,), exponential), max_batch_rows=ALONE)
    result = simulated(box, rate=0.001, seconds=2_000_000, shards=4)
    assert result.mean_ms / 1e3 == pytest.approx(1 + 1 / 2 + 1 / 3 + 1 / 4, rel=0.06)


def test_the_event_loop_and_the_wire_add_what_they_cost() -> None:
    box = Box(
        Service((1,), (1.0,)), max_batch_rows=ALONE, read_s=0.01, write_s=0.02, hop_s=0.05,
        wire_s=0.2,
    )  # fmt: skip
    result = simulated(box, rate=0.001, seconds=20_000)
    assert result.percentile_ms(10) / 1e3 == pytest.approx(1 + 0.01 + 0.02 + 2 * 0.05 + 0.2)
    busy_loop = Box(Service((1,), (0.0,)), max_batch_rows=ALONE, read_s=0.6, write_s=0.4)
    assert busy_loop.capacity(1) == pytest.approx(1.0)
