"""``narsil bench``: what it prints, writes and judges, and its exit codes."""

import json
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest import calibrate, command, compare, html, slo
from loadtest.calibrate import Ceiling, null_server
from loadtest.closed import Failures
from loadtest.histogram import Histogram
from loadtest.record import Outcome, total
from loadtest.report import FAILED, INVALID


@pytest.fixture(scope="module")
def null_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with null_server("grpc", tmp_path_factory.mktemp("null")) as port:
        yield f"grpc://127.0.0.1:{port}"


def test_a_run_is_printed_written_drawn_and_compared(
    null_url: str, small_artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result, page = tmp_path / "a.json", tmp_path / "a.html"
    flags = f"--rows 1,1:1+3:1 --rate 200 --seconds 0.4 --warmup 0.1 --requests 20 --processes 2 \
        --url {null_url} --json {result} --html {page} --slo p99=1s --no-calibration".split()
    # INVALID is what a busy machine may make of it.
    assert command.main([str(small_artifact), *flags]) in (0, INVALID)
    printed = capsys.readouterr()
    head, *sentences = printed.out.splitlines()
    assert head.startswith(f"narsil bench of {small_artifact}: 0.4 s each after 0.1 s of warm-up; ")
    assert [line.partition(": ")[0] for line in sentences] == [
        "grpc, 1 rows, poisson 200/s", "grpc, 1:1+3:1 rows, poisson 200/s"
    ]  # fmt: skip
    assert all("samples/s; p50 " in line and "p99=1000ms kept" in line for line in sentences)
    assert "narsil bench: measuring grpc, 1 rows, poisson 200/s: 0.5 s ..." in printed.err
    document = json.loads(result.read_text())
    head, lines = document["manifest"], document["runs"]
    assert head["machine"]["cpus"] > 0
    assert head["flags"]["seed"] == 0
    assert [line["rows"] for line in lines] == [1, "1:1+3:1"]
    for line in lines:
        assert line["requests"] == pytest.approx(80, abs=25)
        assert line["slo_met"] is True
        assert line["goodput_per_s"] == line["requests_per_s"]
        assert line["lag"]["p99_ms"] <= line["lag"]["max_ms"]
    assert page.read_text().count("<svg") == 4
    assert ">Overload<" in page.read_text()
    assert not any(word in page.read_text() for word in ("<script", "<link", "src=", "href="))
    assert compare.main([str(result), str(result), "--json"]) == 0
    ratios = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["ratio"] for line in ratios} == {1.0}


def test_wrong_answers_fail_the_run(
    null_url: str, small_artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = f"--rows 1 --seconds 0.2 --warmup 0 --requests 20 --verify --url {null_url}".split()
    flags += ["--json", "-"]
    assert command.main([str(small_artifact), *flags]) == FAILED
    printed = capsys.readouterr()
    alone, run = map(json.loads, printed.out.splitlines()[1:])
    assert alone["generator_alone"]["requests_per_s"] > 0
    assert run["mismatches"] >= run["requests"] > 0
    assert "wrong answers" in printed.err


def test_the_bare_forward_needs_no_server(
    small_artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--wire", "bare", "--rows", "1,3", "--seconds", "0.05", "--json", "-"]
    assert command.main([str(small_artifact), *arguments]) == 0
    _, *lines = map(json.loads, capsys.readouterr().out.splitlines())
    assert [(line["wire"], line["rows"]) for line in lines] == [("bare", 1), ("bare", 3)]
    assert all(line["requests"] > 0 for line in lines)


@pytest.mark.parametrize(("wire", "scheme"), [("grpc", "grpc"), ("http", "http")])
def test_a_run_without_a_server_ends_with_one_sentence(
    wire: str, scheme: str, small_artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as bound_but_deaf:
        bound_but_deaf.bind(("127.0.0.1", 0))
        url = f"{scheme}://127.0.0.1:{bound_but_deaf.getsockname()[1]}"
        flags = ["--wire", wire, "--url", url, "--requests", "2", "--no-calibration"]
        assert command.main([str(small_artifact), *flags]) == FAILED
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith(f"narsil bench: cannot connect to {url}: ")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--wire http,grpc --url http://127.0.0.1:1", "://HOST:PORT"),
        ("--wire http3 --url http://127.0.0.1:1", "://HOST:PORT"),
        ("--wire grpc --url 127.0.0.1:1", "://HOST:PORT"),
        ("--wire http --url http://127.0.0.1:x", "://HOST:PORT"),
        ("--wire smoke", "no wire 'smoke'; there are grpc, oip-grpc, "),
        ("--wire grpc,bare --rate 5", "take it without --rate"),
        ("--wire bare --concurrency 4", "with 1 in --concurrency"),
        ("--rows 0", "rows and weights must be above 0"),
        ("--rate 0", "must be above 0"),
        ("--arrivals sometimes", "no arrivals 'sometimes'"),
        ("--arrivals trace:/nowhere", "trace /nowhere cannot be read: No such file"),
        ("--slo fast", "as p99=10ms; got 'fast'"),
    ],
)
def test_flags_that_make_no_sense_are_refused(
    flags: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        command.main(["unused", *flags.split()])
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


def outcome(lag_s: float = 1e-4, sending_s: float = 10.0, response_s: float = 1e-3) -> Outcome:
    """1000 answers, 100 a second."""
    response = Histogram.of(np.full(1000, response_s))
    return Outcome(
        offered=1000, measure_s=10.0, elapsed_s=10.0, sending_s=sending_s, response=response,
        service=response, lag=Histogram.of(np.full(1000, lag_s)), windows=(response,),
        failures=Failures(), mismatches=0, unanswered=0, cancelled=0, cpu_s=0.1,
    )  # fmt: skip


def test_a_run_that_kept_its_schedule_is_valid() -> None:
    assert calibrate.faults(outcome(), Ceiling(1000.0, 1e-4, 1e-5)) == []
    assert calibrate.faults(outcome(), None) == []


@pytest.mark.parametrize(
    ("found", "ceiling", "said"),
    [
        (outcome(lag_s=2e-3), 1000.0, "send lag p99 2.00 ms > 1 ms"),
        (outcome(sending_s=12.5), 1000.0, "sent 80.0 % of the offered rate"),
        (outcome(), 105.0, "100 requests/s is too near the generator's own 105"),
    ],
)
def test_a_generator_that_was_the_bottleneck_makes_the_run_invalid(
    found: Outcome, ceiling: float, said: str
) -> None:
    assert calibrate.faults(found, Ceiling(ceiling, 1e-4, 1e-5)) == [said]


def test_parts_add_up_to_the_whole() -> None:
    failed = replace(outcome(), failures=Failures(Counter({"429": 2}), "429: full"))
    both = total([failed, outcome(sending_s=9.0), failed])
    assert (both.answered, both.errors, both.offered) == (3000, 4, 3000)
    assert both.failures.first == "429: full"
    assert (both.sending_s, both.elapsed_s) == (10.0, 10.0)


def test_an_objective_counts_latency_and_errors() -> None:
    objective = slo.parse("p99.9=2.5ms")
    assert (objective.percent, objective.limit_s) == (99.9, 0.0025)
    assert objective.met(outcome())
    assert not objective.met(outcome(response_s=3e-3))
    assert not objective.met(replace(outcome(), failures=Failures(Counter({"429": 2}))))
    assert not objective.met(replace(outcome(), response=Histogram()))


@pytest.mark.parametrize("limit", [3.0, 90.0, 100.0, 777.0])
def test_the_search_finds_the_highest_rate_from_any_guess(limit: float) -> None:
    asked: list[float] = []

    def keeps(rate: float) -> bool:
        asked.append(rate)
        return rate <= limit

    assert 0.95 * limit <= slo.search(keeps, 100.0, 0.05) <= limit
    assert len(asked) < 15


def test_the_search_ends_where_no_rate_is_kept_or_every_one() -> None:
    assert slo.search(lambda rate: False, 100.0, 0.05) == 0.0
    assert slo.search(lambda rate: True, 100.0, 0.05) == 3200.0


def runs(rates: Sequence[float]) -> list[dict[str, Any]]:
    return [
        {"wire": "grpc", "rows": 1, "concurrency": 4, "requests": 9, "requests_per_s": rate,
         "p50_ms": 1e3 / rate, "p99_ms": 2e3 / rate}
        for rate in rates
    ]  # fmt: skip


def test_a_ratio_has_an_interval_over_the_repeats() -> None:
    rate, p50, _ = compare.compared(runs([100, 101, 102, 103]), runs([200, 203, 205, 204]))
    assert rate["metric"] == "requests_per_s"
    assert 1.9 < rate["low"] <= rate["ratio"] <= rate["high"] < 2.1
    assert p50["high"] < 0.55
    assert rate["over"] == "4 and 4 repeats"


def test_a_result_that_is_worse_than_allowed_is_told_by_the_exit_code(tmp_path: Path) -> None:
    paths = {}
    for name, rates in {"good": [100, 101, 102], "bad": [80, 81, 82]}.items():
        paths[name] = tmp_path / name
        paths[name].write_text(json.dumps({"runs": runs(rates)}))
    both = [str(paths["good"]), str(paths["bad"])]
    assert compare.main([*both, "--worse", "0.05"]) == compare.WORSE
    assert compare.main([*both, "--worse", "0.5"]) == 0
    assert compare.main([*both[::-1], "--worse", "0.05"]) == 0
    assert compare.main([both[0], str(tmp_path / "none")]) == 2


def test_two_urls_of_one_file_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    interleaved = [
        {**run, "url": url}
        for url, rates in {"grpc://a:1": [100, 101, 102], "grpc://b:1": [200, 202, 204]}.items()
        for run in runs(rates)
    ]
    path = tmp_path / "ab.json"
    path.write_text(json.dumps({"runs": interleaved}))
    assert compare.main([str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["ratio"] == 2.0
    assert compare.main([str(path)]) == 0
    head, setting, rate, p50, p99 = capsys.readouterr().out.splitlines()
    assert head.split() == ["A", "B", "B", "by", "A", "95", "%", "interval", "over"]
    assert setting == "grpc, 1 rows, 4 in flight"
    assert rate.split()[:4] == ["requests_per_s", "101", "202", "2.000"]
    assert [line.split()[7] for line in (rate, p50, p99)] == ["better"] * 3
    path.write_text(json.dumps({"runs": interleaved[:3]}))
    assert compare.main([str(path)]) == 2


def test_results_without_a_setting_in_common_are_told_what_each_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a").write_text(json.dumps({"runs": runs([100])}))
    (tmp_path / "b").write_text(json.dumps({"runs": [{**runs([100])[0], "rows": 10}]}))
    assert compare.main([str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert capsys.readouterr().err == (
        "narsil bench compare: no setting is in both; A has grpc, 1 rows, 4 in flight. "
        "B has grpc, 10 rows, 4 in flight\n"
    )


def test_ratios_of_invalid_runs_are_said_to_be_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late = [{**run, "invalid": ["send lag"]} for run in runs([100, 101, 102])]
    (tmp_path / "a").write_text(json.dumps({"runs": runs([100, 101, 102])}))
    (tmp_path / "b").write_text(json.dumps({"runs": late}))
    assert compare.main([str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert capsys.readouterr().err == (
        "narsil bench compare: INVALID in B, the generator was the bottleneck: "
        "grpc, 1 rows, 4 in flight\n"
    )


def test_a_page_quotes_what_it_shows() -> None:
    run = {"wire": "<b>", "rows": 1, "concurrency": 1, "requests": 0, "errors": 3}
    document = {"manifest": {"command": ["<x>"]}, "generator_alone": [], "runs": [run]}
    page = html.page(document)
    assert "<b>" not in page
    assert "<x>" not in page


def test_what_is_no_result_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.json").write_text("[1]")
    for name, said in {"none.json": "No such file", "other.json": "not a result of narsil"}.items():
        assert compare.main([str(tmp_path / name), str(tmp_path / name)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"narsil bench compare: {tmp_path / name}")
        assert said in line


def test_a_folder_that_is_none_is_told_from_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["nowhere"]) == FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("narsil bench: nowhere is not an artifact folder: ")
    assert "Errno" not in line
    assert line.endswith("the server's address goes to --url")
