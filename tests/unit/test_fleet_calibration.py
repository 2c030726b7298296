"""From measured batches to a simulated server, and the verdict on the two curves."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from loadtest.fleet import calibrate, curve, scenarios
from loadtest.fleet.calibration import Calibration, document_of, fitted, read, service_of
from loadtest.fleet.closed import simulate_closed
from loadtest.fleet.pair import TWICE

SLOW = pytest.mark.slow
EVERY_RUN = ["--most-others", "2"]  # more than there is: what else runs here is no fault
BENCHMARKS = Path(__file__).parents[2] / "docs" / "benchmarks"
MEASURED = BENCHMARKS / "2026-11-fleet-cost.json"
FOLLOWED = ("2026-11-fleet-native.json", "2026-11-fleet-native-again.json")
CALIBRATION = Calibration(
    backend="cost", lanes=1, max_batch_rows=100, rows=10,
    points=((10, 0.011), (50, 0.015), (100, 0.020)), hop_s=1e-4, loop_s=3e-4, lone_s=0.0125,
)  # fmt: skip
POINTS: list[dict[str, Any]] = [
    {"rate": 200.0, "in_flight": 0, "seconds": 1.0, "warmup_s": 0.2, "seeds": [1, 2, 3]},
    {"rate": 0.0, "in_flight": 32, "seconds": 1.0, "warmup_s": 0.2},
]


def measured_as_simulated(factor: float, figure: str) -> list[dict[str, Any]]:
    """Return the curve that the simulation gives itself, with one figure changed."""
    points = []
    for point in POINTS:
        figures = curve.simulated(CALIBRATION.box(), CALIBRATION.rows, point)
        changed = {**figures, figure: figures[figure] * factor}
        points.append({**point, "measured": changed, "points": CALIBRATION.points})
    return points


def write(path: Path, points: list[dict[str, Any]]) -> None:
    document = document_of({"time": "now"}, CALIBRATION, points)
    path.write_text(json.dumps(document), encoding="utf-8")


def test_a_curve_of_which_every_run_was_disturbed_is_not_kept(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert curve.report([]) == 1
    assert "no run is left to compare" in capsys.readouterr().out


def test_batches_of_about_a_size_are_one_point_and_more_rows_never_cost_less() -> None:
    points = fitted({10: (1, 0.010), 11: (3, 0.034), 20: (2, 0.018), 80: (1, 0.030)})
    assert [rows for rows, _ in points] == [11, 20, 80]
    assert [seconds for _, seconds in points] == pytest.approx([0.011, 0.011, 0.030])


def test_between_the_points_are_straight_lines_and_beyond_them_the_last_goes_on() -> None:
    service = CALIBRATION.box().service
    assert [service.of(rows) for rows in (10, 30, 50, 75, 100, 200)] == pytest.approx(
        [0.011, 0.013, 0.015, 0.0175, 0.020, 0.030]
    )


def test_a_calibration_survives_its_file(tmp_path: Path) -> None:
    write(tmp_path / "one.json", [])
    assert read(tmp_path / "one.json")[0] == CALIBRATION
    assert Calibration.of(json.loads(json.dumps(asdict(CALIBRATION)))) == CALIBRATION


def test_a_lone_request_takes_as_long_as_was_measured_and_a_crowd_fills_the_batches() -> None:
    box = CALIBRATION.box()
    alone = simulate_closed(box, 1, CALIBRATION.rows, 1.0, seed=1)
    assert alone.percentile_ms(50) == pytest.approx(CALIBRATION.lone_s * 1e3, rel=1e-6)
    crowd = simulate_closed(box, 50, CALIBRATION.rows, 5.0, seed=1)
    assert crowd.left == 0
    assert crowd.answered / crowd.seconds == pytest.approx(box.capacity(10), rel=0.03)


@pytest.mark.parametrize(
    ("factor", "figure", "code"),
    [(1.0, "p50_ms", 0), (1.08, "p50_ms", 0), (1.2, "p50_ms", 1), (0.85, "p50_ms", 1),
     (1.2, "requests_per_s", 1), (9.0, "p99_ms", 0)],
)  # fmt: skip
def test_a_judged_figure_beyond_a_tenth_is_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], factor: float, figure: str, code: int
) -> None:
    write(tmp_path / "one.json", measured_as_simulated(factor, figure))
    assert curve.main([str(tmp_path / "one.json")]) == code
    printed = capsys.readouterr().out
    assert ("NOT KEPT" in printed) == bool(code)
    assert "32 in flight" in printed


@pytest.mark.parametrize("more", [(), ("--own",)])
def test_the_measured_curve_of_the_documents_is_reproduced(more: tuple[str, ...]) -> None:
    assert curve.main([str(MEASURED), *more]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLLOWED)
def test_the_reference_artifact_s_curve_is_reproduced_and_drawn(name: str, tmp_path: Path) -> None:
    picture = tmp_path / "curve.svg"
    assert curve.main([str(BENCHMARKS / name), "--own", "--svg", str(picture)]) == 0
    assert picture.read_text().count("<polyline") == 8


def test_the_runs_own_batch_times_tell_a_slow_machine_from_a_wrong_model(tmp_path: Path) -> None:
    slower = [(rows, 1.5 * seconds) for rows, seconds in CALIBRATION.points]
    box = replace(CALIBRATION.box(), service=service_of(slower))
    measured = curve.simulated(box, CALIBRATION.rows, POINTS[1])
    write(tmp_path / "one.json", [{**POINTS[1], "measured": measured, "points": slower}])
    assert curve.main([str(tmp_path / "one.json")]) == 1
    assert curve.main([str(tmp_path / "one.json"), "--own"]) == 0


@pytest.mark.parametrize(
    "name", ["load", "failures", *(
        pytest.param(name, marks=SLOW) for name in ("shards", "updates", "hedging", "balancers")
    )],
)  # fmt: skip
def test_a_scenario_prints_the_same_figures_every_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    write(tmp_path / "one.json", [])
    asked = [str(tmp_path / "one.json"), name, "--requests", "400"]
    assert scenarios.main(asked) == 0
    printed = capsys.readouterr().out
    assert printed.count("\n|") >= 4
    assert scenarios.main(asked) == 0
    assert capsys.readouterr().out == printed


@pytest.mark.slow
def test_a_real_server_is_calibrated_on_and_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "one.json"
    asked = ["cost", "--rounds", "1", "--seconds", "0.3", "--loads", "0.5", "--json", str(file)]
    asked += EVERY_RUN
    assert calibrate.main(asked) in {0, 1}  # what a busy machine makes of it
    calibration, document = read(file)
    assert calibration.box().service.of(10) >= 0.011
    assert calibration.box().service.of(256) >= 0.0356
    assert {point["in_flight"] for point in document["curve"]} == {0, 1, 8, 64}
    printed = capsys.readouterr().out.partition("with the measured")[0]
    assert curve.main([str(file)]) == (1 if "NOT KEPT" in printed else 0)


@pytest.mark.slow
def test_a_server_that_computes_is_followed_on_its_one_processor(
    small_artifact: Path, tmp_path: Path
) -> None:
    file = tmp_path / "one.json"
    asked = ["native_dlrm", "--rows", "50", "--rounds", "3", "--within", "0"]
    asked += ["--seconds", "0.3", "--loads", "0.5"]
    asked += ["--artifact", str(small_artifact), "--json", str(file), *EVERY_RUN]
    assert calibrate.main(asked) in {0, 1}
    calibration, document = read(file)
    assert calibration.shared is not None
    assert calibration.shared.client_s > 0  # what is left for the wire may be nothing
    opened, *closed = document["curve"]
    assert len(opened["runs"]) == TWICE  # no second round after 0 s
    assert min(opened["runs"][0]["pace"]) > 0
    assert [point["in_flight"] for point in closed] == [1, 8, 64]
