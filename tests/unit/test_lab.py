"""The measuring tools: their figures are right where the right figure is known."""

import argparse
import asyncio
import math
from xml.etree import ElementTree

import numpy as np
import pytest

from backends.fake import FakeBackend, FakeOptions
from loadtest.lab import (
    closed_loop,
    floor,
    open_loop,
    overhead,
    overlap,
    overload,
    overload_plot,
    setting,
    soak,
    stats,
    svg,
)
from loadtest.lab.backends import Interval, StampingBackend, TracingBackend
from loadtest.lab.manifest import manifest
from loadtest.lab.soak_load import Case, Sample, outcome
from loadtest.lab.soak_loop import CountingLoop
from scheduler.options import SchedulerOptions
from scheduler.types import Batch
from tests.fixtures.gates import Outputs, TwistedBackend, make_request
from tests.fixtures.gates import serving as gated


def test_a_percentile_is_a_value_that_occurs_even_beside_infinite_ones() -> None:
    values = [1.0, 2.0, 3.0, math.inf]
    assert stats.percentile(values, 0.5) == 2.0
    assert stats.percentile(values, 0.75) == 3.0
    assert stats.percentile(values, 0.99) == math.inf
    assert math.isnan(stats.percentile([], 0.5))


def test_a_slope_survives_a_fifth_of_outliers() -> None:
    x = [float(second) for second in range(20)]
    y = [3.0 * second + 1 for second in x]
    y[3] = y[9] = y[15] = y[19] = 1e6
    assert stats.theil_sen(x, y) == pytest.approx(3.0)


def test_ratios_are_taken_within_each_round() -> None:
    assert stats.median_ratio([2.0, 20.0, 200.0], [1.0, 10.0, 100.0]) == 2.0


def test_poisson_arrivals_are_seeded_as_many_as_asked_for_and_independent() -> None:
    due_s = open_loop.poisson(2000.0, 5.0, seed=1)
    np.testing.assert_array_equal(due_s, open_loop.poisson(2000.0, 5.0, seed=1))
    assert len(due_s) == 10_000
    assert due_s[0] >= 0
    assert due_s[-1] <= 5
    gaps = np.diff(due_s)
    assert gaps.mean() == pytest.approx(gaps.std(), rel=0.05)  # exponential


def test_what_was_accepted_and_not_answered_counts_as_never_answered() -> None:
    tally = open_loop.Tally(6, seconds=2.0, timeout_s=0.05, elapsed_s=2.5, lags_s=[0.0] * 6)
    tally.answered_s += [0.01, 0.02, 0.06]
    tally.refused_s.append(0.001)
    tally.expired_s += [0.05, 0.05]
    figures = tally.figures()
    assert figures["offered"] == 3
    assert figures["goodput"] == 0.8  # of three answers one came too late; until the last one
    assert (figures["refused"], figures["expired"]) == (0.5, 1)
    assert figures["accepted_p50_ms"] == 60
    assert figures["accepted_p99_ms"] == math.inf
    assert tally.valid


def test_a_run_whose_generator_was_late_is_not_valid() -> None:
    tally = open_loop.Tally(offered=2, seconds=1.0, timeout_s=1.0, lags_s=[0.0, 0.002])
    assert not tally.valid


async def test_an_open_loop_accounts_for_every_request() -> None:
    options = SchedulerOptions(max_queue_rows=1024)
    async with setting.serving(FakeBackend(FakeOptions()), options) as engine:
        requests = setting.make_requests(setting.FAKE_SHAPE, 3, 10, seed=0)
        due_s = open_loop.poisson(500.0, 0.1, seed=0)
        tally = await open_loop.run(engine, requests, due_s, timeout_s=30.0)
    assert len(tally.answered_s) == len(tally.lags_s) == 50
    assert tally.refused_s == tally.expired_s == []
    assert min(tally.answered_s) > 0


async def test_an_open_loop_tells_the_expired_from_the_refused() -> None:
    options = SchedulerOptions(max_queue_rows=1024)
    async with gated(options=options) as state:
        await state.occupy()
        large = [make_request(1000, model=""), make_request(500, model="")]
        due_s = np.array([0.0, 0.001])
        tally = await open_loop.run(state.engine, large, due_s, timeout_s=0.3)
    assert (len(tally.expired_s), len(tally.refused_s)) == (1, 1)


async def test_a_closed_loop_keeps_as_many_in_flight_as_asked() -> None:
    under_way = most = 0

    async def ask() -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1

    done = await closed_loop.run(ask, in_flight=7, seconds=0.01)
    assert most == 7
    assert under_way == 0
    assert len(done.latencies_s) >= 7


async def test_the_floor_answers_each_item_once_from_another_thread() -> None:
    hand_off = floor.HandOff()
    stamps = await asyncio.gather(*(hand_off.ask() for _ in range(50)))
    hand_off.stop()
    assert len(stamps) == 50
    assert all(began_s <= ended_s for began_s, ended_s in stamps)


async def test_stamps_say_when_the_backend_had_the_request() -> None:
    async with setting.serving(StampingBackend(FakeOptions(compute_s=0.01))) as engine:
        requests = setting.make_requests(setting.FAKE_SHAPE, 1, 1, seed=0)
        began_s, ended_s = await overhead.stamping(engine, requests)()
    assert ended_s - began_s >= 0.01


def test_each_contestant_is_compared_with_its_own_floor() -> None:
    def cost(total_us: float) -> list[overhead.Cost]:
        return [overhead.Cost(total_us, total_us, 0.0, 0.0)] * 3

    costs = {
        (overhead.HAND_OFF, 1): cost(20.0),
        (overhead.INLINE, 1): cost(2.0),
        ("batch", 1): cost(60.0),
        ("inline", 1): cost(8.0),
    }
    lines = {str(line["name"]): line for line in overhead.table(costs)}
    assert lines["batch"]["above floor us"] == 40
    assert lines["inline"]["x floor"] == 4


def test_a_traced_backend_answers_as_it_would_alone_and_says_when() -> None:
    fake = FakeBackend(FakeOptions())
    tracing = TracingBackend(fake)
    request = make_request(3)
    answer = tracing.prepare(Batch((request,)))()
    np.testing.assert_array_equal(answer["default"], fake.score(request))
    gather, compute = tracing.intervals
    assert (gather.kind, compute.kind) == ("gather", "compute")
    assert gather.end_s <= compute.begin_s
    assert (gather.batch, gather.rows) == (compute.batch, compute.rows) == (0, 3)


def _trace() -> list[Interval]:
    return [
        Interval("gather", "fake-lane-0", 0, 5, 0.0, 1.0),
        Interval("compute", "fake-lane-0", 0, 5, 1.0, 3.0),
        Interval("gather", "fake-gather", 1, 5, 1.5, 2.0),
        Interval("compute", "fake-lane-0", 1, 5, 3.5, 5.0),
        Interval("compute", "fake-lane-1", 2, 5, 2.0, 6.0),
        Interval("gather", "fake-lane-1", 2, 5, 1.0, 2.0),
    ]


def test_a_lane_is_idle_between_its_own_computations() -> None:
    assert overlap.idle_us(_trace()) == [pytest.approx(500_000)]


def test_a_batch_is_gathered_ahead_if_another_thread_did_it() -> None:
    assert overlap.hidden(_trace()) == pytest.approx(1 / 3)


async def test_without_gathering_ahead_no_batch_is_gathered_elsewhere() -> None:
    fake = FakeBackend(FakeOptions(max_batch_rows=8))
    requests = setting.make_requests(setting.FAKE_SHAPE, 4, 5, seed=0)
    measured = await overlap.measure(fake, overlap.OnTheLane, requests, (12, 0.05))
    assert measured.requests_per_s > 0
    assert overlap.hidden(measured.trace) == 0


async def test_the_soak_counts_right_answers_and_finds_wrong_ones() -> None:
    def twist(batch: Batch, outputs: Outputs) -> Outputs:
        return {"default": np.zeros_like(outputs["default"])}

    good, bad = FakeBackend(FakeOptions()), TwistedBackend(FakeOptions(), twist)
    request = make_request(4)
    case = Case(request, good.score(request))
    for backend, word in ((good, "answered"), (bad, "wrong scores")):
        async with setting.serving(backend) as engine:
            assert await outcome(asyncio.create_task(engine.infer(request)), case) == word


def test_the_soak_survives_swaps_and_cancels_without_a_fault() -> None:
    arguments = argparse.Namespace(minutes=0.01, in_flight=4, swap_s=0.1, sample_s=0.05, seed=1)
    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        samples, outcomes = runner.run(soak.run(arguments))
    assert outcomes.swaps >= 1
    assert outcomes.counts["answered"] > 0
    assert not outcomes.wrong
    # A sample may fall between two requests: then no deadline is being waited for.
    assert max(sample.timers for sample in samples) >= 1


def _sample(at_s: float, rss_mib: float) -> Sample:
    return Sample(at_s, 100.0, rss_mib, 5, 7, 3)


def test_memory_that_creeps_is_not_flat() -> None:
    flat = soak.slopes([_sample(float(second), 50.0) for second in range(20)])
    assert {line["flat"] for line in flat} == {"yes"}
    creeping = soak.slopes([_sample(float(second), 50.0 + second) for second in range(20)])
    assert [line["figure"] for line in creeping if line["flat"] == "no"] == ["rss_mib"]


def test_the_counting_loop_knows_its_live_timers() -> None:
    async def body() -> list[int]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CountingLoop)
        counts = [loop.live_timers()]
        handles = [loop.call_later(60, print), loop.call_at(loop.time() + 60, print)]
        counts.append(loop.live_timers())
        handles[0].cancel()
        counts.append(loop.live_timers())
        handles[1].cancel()
        return [*counts, loop.live_timers()]

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        assert runner.run(body()) == [0, 2, 1, 0]


def _line(load: float, state: str, share: float, p99_ms: float) -> dict[str, float | str]:
    rates = {"goodput": 100 * share, "refused": 1.0, "expired": 0.0}
    times = {"accepted_p50_ms": 10.0, "accepted_p99_ms": p99_ms}
    return {"refuse_late": state, "load": load, "goodput/capacity": share, **rates, **times}


@pytest.mark.parametrize(
    ("share", "p99_ms", "kept"), [(0.9, 50, True), (0.89, 50, False), (0.95, 51, False)]
)
def test_the_promise_is_judged_at_the_highest_load_with_prediction(
    share: float, p99_ms: float, kept: bool
) -> None:
    lines = [
        _line(1.0, "on", 0.5, 99.0),
        _line(3.0, "on", share, p99_ms),
        _line(3.0, "off", 0.1, math.inf),
    ]
    assert overload.verdict(lines, timeout_ms=50) is kept


def test_pictures_are_well_formed_and_draw_what_is_infinite_along_the_top() -> None:
    lines = [_line(1.0, "on", 1.0, 20.0), _line(3.0, "on", 0.9, math.inf), _line(1, "off", 1, 9)]
    document = overload_plot.plot(lines, capacity=100.0, timeout_ms=50.0, note="a note")
    root = ElementTree.fromstring(document)
    circles = root.findall(".//{http://www.w3.org/2000/svg}circle")
    assert len(circles) == 3 * 5  # 3 lines, 5 figures
    assert [circle.get("cy") for circle in circles].count(f"{svg.TOP:.1f}") == 1  # the infinite one
    assert "(a note)" in document
    assert "nan" not in document
    assert "inf" not in document


def test_a_timeline_has_a_bar_for_every_interval() -> None:
    bars = [svg.Bar("a<b", 0.0, 1.0, "#000000"), svg.Bar("c", 0.5, 2.0, "#000000", "text")]
    root = ElementTree.fromstring(svg.timeline("title", "ms", bars, {"kind": "#000000"}))
    assert len(root.findall(".//{http://www.w3.org/2000/svg}rect")) == 3  # and one in the legend


def test_a_manifest_names_machine_versions_commit_and_seed() -> None:
    about = manifest(argparse.Namespace(seed=7))
    assert about["flags"] == {"seed": 7}
    assert {"machine", "versions", "commit", "time"} <= about.keys()
