"""A simulated server whose event loop and lane have one processor, and what it is calibrated on."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from backends.fake import FakeBackend, FakeOptions
from loadtest.fleet import followed
from loadtest.fleet.__main__ import main
from loadtest.fleet.box import Box, Service
from loadtest.fleet.calibration import Calibration, Shared
from loadtest.fleet.closed import simulate_closed
from loadtest.fleet.draws import exponential
from loadtest.fleet.fleet import simulate
from loadtest.fleet.notes import slowness, straight
from loadtest.fleet.pace import STEADY, Pace
from loadtest.fleet.pace import followed as pace_of
from loadtest.fleet.plan import Death, Hold, Plan, poisson
from loadtest.fleet.timed import Ended, Log, TimedBackend
from loadtest.lab import setting
from scheduler.types import Batch

BOX = Box(
    Service((10, 110), (0.010, 0.060)), max_batch_rows=100, read_s=4e-4, write_s=2e-4, wire_s=1e-3,
    shared=True, turn_s=1e-4, yield_s=3e-4,
)  # fmt: skip
LONE_S = 1e-3 + (4e-4 + 1e-4) + 0.010 + 1e-4 + (2e-4 + 1e-4)
CALIBRATION = Calibration(
    backend="native_dlrm", lanes=1, max_batch_rows=100, rows=10,
    points=((10, 0.010), (110, 0.060)), hop_s=1e-4, loop_s=6e-4, lone_s=LONE_S,
    shared=Shared(turn_s=1e-4, yield_s=3e-4, wire_s=1e-3, client_s=2e-4),
)  # fmt: skip


def latencies_s(box: Box, *arrivals: float) -> list[float]:
    return simulate(Plan(box), arrivals, [10], seed=1).latencies_s


def test_a_lone_request_takes_its_three_turns_its_batch_and_the_wire() -> None:
    assert latencies_s(BOX, 0.0) == pytest.approx([LONE_S])
    assert latencies_s(CALIBRATION.box(), 0.0) == pytest.approx([LONE_S])


def test_what_the_loop_does_stops_the_lane_for_as_long() -> None:
    first, _ = latencies_s(BOX, 0.0, 0.005)
    assert first == pytest.approx(LONE_S + 4e-4 + 1e-4)


def test_the_loop_waits_for_a_lane_that_computes_and_no_longer_than_that() -> None:
    """The second comes just before the lane is done: both are then the loop's in one turn."""
    begins_s = 5e-4 + 5e-4
    comes_s = begins_s + 0.010 - 1e-4
    first, second = latencies_s(BOX, 0.0, comes_s - 5e-4)
    turn_s = 1e-4 + 4e-4  # it learns of the lane's end and reads; the next batch then waits for
    answer_s = 1e-4 + 2e-4  # the answer
    assert first == pytest.approx(5e-4 + 5e-4 + 0.010 + turn_s + answer_s + 5e-4)
    read_s = begins_s + 0.010 + turn_s + answer_s
    assert second == pytest.approx(read_s + 0.010 + 1e-4 + answer_s + 5e-4 - (comes_s - 5e-4))


def test_a_processor_that_idles_is_woken_late_and_one_that_is_at_work_is_not() -> None:
    sleepy = dataclasses.replace(BOX, idle_s=2e-4)
    assert latencies_s(sleepy, 0.0) == pytest.approx([LONE_S + 2e-4])
    both = [latencies_s(box, 0.0, 0.005) for box in (BOX, sleepy)]
    assert both[1][0] - both[0][0] == pytest.approx(2e-4)
    assert both[1][1] - both[0][1] == pytest.approx(2e-4)  # it waits for the first one's batch


def test_at_full_load_the_processor_s_time_is_all_that_counts() -> None:
    crowd = simulate_closed(BOX, 40, 10, 30.0, seed=1)
    assert crowd.left == 0
    assert crowd.requests_a_batch == pytest.approx(10, rel=0.02)
    assert crowd.answered / crowd.seconds == pytest.approx(BOX.capacity(10), rel=0.03)
    assert crowd.busy_s + crowd.loop_s == pytest.approx(crowd.seconds, rel=0.02)


def test_a_batch_that_takes_long_enough_grows_no_further() -> None:
    box = dataclasses.replace(BOX, enough_s=0.025)  # of 40 rows
    few = simulate_closed(box, 12, 10, 10.0, seed=1)
    assert few.left == 0
    assert few.requests_a_batch < 0.9 * simulate_closed(BOX, 12, 10, 10.0, seed=1).requests_a_batch
    assert simulate_closed(box, 60, 10, 10.0, seed=1).requests_a_batch > 8  # a crowd


def test_every_arrival_has_one_end_whatever_happens() -> None:
    box = dataclasses.replace(
        BOX, service=Service((1, 100), (0.002, 0.01), exponential), max_queue_rows=400
    )
    plan = Plan(
        box, replicas=4, shards=2, balancers=3, hedge_s=0.01, detect_s=0.05, slower=(1.0, 4.0),
        deaths=(Death(0.3, 1, 0.4), Death(0.32, 2, 0.2), Death(0.5, 5, 9.0)),
        holds=(Hold(0.2, 0, 0.05), Hold(0.21, 0, 0.05), Hold(0.31, 1, 0.05)),
    )  # fmt: skip
    for rate in (300, 2_500):
        result = simulate(plan, poisson(rate, 1.0, (1,)), [1, 10, 30], seed=1)
        answered = sum(not math.isnan(latency_s) for latency_s in result.latencies_s)
        assert result.left == 0
        assert answered == result.answered > 0
        assert result.retried > 0


def test_a_machine_at_half_its_speed_takes_twice_as_long_and_a_quicker_loop_less() -> None:
    wire_s = BOX.wire_s
    slow = dataclasses.replace(BOX, pace=Pace(math.inf, (2.0,)))
    assert latencies_s(slow, 0.0) == pytest.approx([wire_s + 2 * (LONE_S - wire_s)])
    quick = dataclasses.replace(BOX, pace=Pace(math.inf, (1.0,), 0.5))
    assert latencies_s(quick, 0.0) == pytest.approx([LONE_S - 0.5 * 9e-4])


def test_a_machine_slows_down_in_the_windows_in_which_it_did() -> None:
    pace = pace_of([0.1, 0.15, 0.9], [1.0, 3.0, 1.0], [1.0, 1.0, 1.0], 0.2)
    assert pace.lane == (2.0, 2.0, 2.0, 2.0, 1.0)
    assert [pace.lane_at(time_s) for time_s in (0.0, 0.79, 0.81, 7.0)] == [2.0, 2.0, 1.0, 1.0]
    assert STEADY.lane_at(5.0) == STEADY.loop_at(5.0) == 1.0


def test_two_lanes_on_one_processor_are_refused() -> None:
    with pytest.raises(ValueError, match="must be 1, got 2"):
        dataclasses.replace(BOX, lanes=2)


def test_batches_at_whatever_pace_lie_on_the_line_that_they_cost() -> None:
    batches = [Ended(0.0, rows, 0.005 + 0.0005 * rows, 0.0) for rows in (10, 20, 50, 100)]
    points = straight(batches, 10, 110)
    assert dict(points) == pytest.approx({10: 0.010, 110: 0.060})
    slow = [dataclasses.replace(batch, cpu_s=1.5 * batch.cpu_s) for batch in batches]
    assert slowness(slow, BOX.service) == pytest.approx(1.5)


@pytest.mark.parametrize(
    "point",
    [{"rate": 60.0, "in_flight": 0, "seconds": 2.0, "warmup_s": 0.2},
     {"rate": 0.0, "in_flight": 5, "seconds": 2.0}],
)  # fmt: skip
def test_a_run_that_is_followed_works_as_long_as_the_measured_one(point: dict[str, float]) -> None:
    run = {
        "seed": 3,
        "rate": point["rate"],
        "pace": [1.0, 1.2, 0.9],
        "client_s": 4e-4,
        "lag_s": 0.0,
        "loop_s": 1.5e-3,
    }
    assert CALIBRATION.shared is not None
    result = followed.simulated(CALIBRATION, CALIBRATION.shared, point, run)
    assert result.loop_s / result.answered == pytest.approx(1.5e-3, rel=0.02)
    late = followed.simulated(CALIBRATION, CALIBRATION.shared, point, {**run, "lag_s": 0.5})
    assert np.median(late.latencies_s) > np.median(result.latencies_s) + 0.5
    assert min(result.latencies_s) > 2e-3  # the client took twice what it did alone


def test_each_batch_is_noted_with_its_rows_and_read_once(tmp_path: Path) -> None:
    backend = TimedBackend(FakeBackend(FakeOptions()), tmp_path / "batches")
    backend.load()
    requests = setting.make_requests(setting.FAKE_SHAPE, 3, 2, seed=0)
    log = Log(tmp_path / "batches")
    for wanted in (requests, requests[:1]):
        batch = Batch(tuple(wanted))
        assert backend.check(wanted[0]) is None
        assert len(backend.prepare(batch)()[backend.spec.outputs[0].name]) == batch.rows
        (ended,) = log.new()
        assert (ended.rows, log.new()) == (batch.rows, [])
        assert ended.spent_s >= ended.cpu_s >= 0
    backend.close()


def test_a_command_that_is_none_is_told_which_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fly"]) == main([]) == 2
    assert "calibrate,curve,scenarios" in capsys.readouterr().err
