"""Faults that ``narsil bench`` makes, the ranking workload, and what it reads of the server."""

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from backends.fake import FakeBackend
from loadtest import beside, command, drive, figures, processes, workload
from loadtest.calibrate import null_server
from loadtest.encodings import Context, Encoding, encode
from loadtest.pool import LOST, NO_SERVER
from loadtest.report import FAILED
from loadtest.requests import Golden, Order, write
from loadtest.wires.kinds import KINDS, target
from loadtest.workload import Mix
from scheduler.types import Batch
from tests.unit.test_bench import SHAPE, bench, bodies, short

USER = Context(2, 1)
RANKED = Mix(((4, 1.0),), workload.Pooling("geometric", 3.0), context=USER)


@pytest.mark.parametrize("wire", ["http-json", "oip-grpc", "http3-json"])
async def test_candidates_with_the_user_given_once_get_the_scores_of_those_spelled_out(
    wire: str, certificates: Path, tmp_path: Path
) -> None:
    encoding = KINDS[wire].encoding
    order = Order(RANKED, encoding, "fake", 10, 1 << 20, seed=1)
    write(tmp_path, SHAPE, order, FakeBackend(FakeBackend.Options()))
    sent = [
        encode(encoding, "fake", SHAPE.features, inputs, USER)
        for _, inputs in workload.draws(SHAPE, RANKED, 10, seed=1)
    ]
    check = Golden(tmp_path, encoding, 1e-5).check
    async with bench(certificates) as on:
        outcome = await on.drive(wire, short(sent, in_flight=3, check=check))
        rows = {request.rows for batch in on.backend.batches for request in batch.requests}
    assert outcome.failures.first == ""
    assert outcome.answered > 0
    assert outcome.mismatches == 0
    assert rows == {4}


@pytest.mark.parametrize("encoding", ["json", "oip"])
def test_a_user_given_once_makes_a_body_smaller(encoding: Encoding) -> None:
    many = Mix(((50, 1.0),), context=Context(3, 1))
    (_, inputs), *_ = workload.draws(SHAPE, many, 1, seed=1)
    once = encode(encoding, "fake", SHAPE.features, inputs, Context(3, 1))
    assert len(once) < len(encode(encoding, "fake", SHAPE.features, inputs))
    with pytest.raises(ValueError, match="knows no context"):
        encode("protobuf", "fake", SHAPE.features, inputs, USER)


async def test_what_was_in_flight_at_the_signal_and_what_came_later_are_told_apart(
    certificates: Path,
) -> None:
    begun, gate = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def hold(batch: Batch) -> None:
        loop.call_soon_threadsafe(begun.set)
        gate.wait(10)

    async with bench(certificates) as on:
        on.backend.before_run = hold
        due_s = np.array([0.0, 0.001, 0.6])
        plan = drive.Plan(bodies("grpc"), 0.0, 0.6, due_s, signal_s=0.5)
        run = asyncio.create_task(on.drive("grpc", plan))
        await begun.wait()
        loop.call_later(0.55, gate.set)  # what was sent before the signal is answered after it
        outcome = await run
    assert outcome.ends == {("in_flight", "ok"): 2, ("later", "ok"): 1}
    assert (outcome.answered, outcome.errors) == (2, 0)
    # The rate is over the time in which requests were counted: not that of the later ones.
    assert 0.5 <= outcome.elapsed_s < 0.6


def test_a_server_that_dies_at_the_signal_loses_what_it_had_and_refuses_the_rest(
    tmp_path: Path,
) -> None:
    wire = "grpc"
    write(tmp_path, SHAPE, Order(Mix(((2, 1.0),)), "protobuf", "fake", 5, 1 << 20, 0), None)
    code = [sys.executable, "-m", "loadtest.null_server", wire]
    with subprocess.Popen(code, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        place = target(KINDS[wire], f"{wire}://127.0.0.1:{int(server.stdout.readline())}", "")
        job = processes.Job(
            wire, place, tmp_path, "protobuf", 2, 0.0, 1.0, np.linspace(0.0, 1.0, 50),
            stop_pid=server.pid, stop_after_s=0.1,
        )  # fmt: skip
        outcome = processes.run(job)
    after = figures.after_signal(outcome)
    assert after["later"][NO_SERVER] > 0
    assert set(after["later"]) <= {"ok", LOST, NO_SERVER}
    assert outcome.answered > 0


@pytest.mark.parametrize("wire", ["grpc", "http"])
async def test_clients_that_read_at_a_trickle_are_answered_beside_the_others(
    wire: str, certificates: Path, tmp_path: Path
) -> None:
    write(tmp_path, SHAPE, Order(Mix(((2, 1.0),)), "protobuf", "fake", 5, 1 << 20, 1), None)
    async with bench(certificates) as on:
        place = target(KINDS[wire], on.served.urls[wire], "")
        job = processes.Job(wire, place, tmp_path, "protobuf", 1, 0.0, 0.1)

        def trickle() -> beside.Slow:
            with beside.slow_readers(job, 2, 64) as slow:
                while slow.ends["ok"] < 4:
                    time.sleep(0.01)
            return slow

        reading = asyncio.create_task(asyncio.to_thread(trickle))
        outcome = await on.drive(wire, short(bodies(wire), in_flight=2))
        slow = await reading
    assert (outcome.answered > 0, outcome.errors) == (True, 0)
    assert set(slow.figures()) == {"ok", "waiting"}


@pytest.fixture
def manifest_only(tmp_path: Path) -> Path:
    """Make what a run without --verify reads of an artifact."""
    manifest = {"name": "m", "dense_names": ["a"], "tables": [{"feature": "f", "rows": 9}]}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    return tmp_path


METRICS = """# TYPE narsil_batch_rows histogram
narsil_batch_rows_sum{model="a"} %(rows)s
narsil_batch_rows_count{model="a"} %(batches)s
# TYPE narsil_queue_depth_rows gauge
narsil_queue_depth_rows{model="a"} 7
"""


def test_the_server_s_metrics_become_means_between_two_looks() -> None:
    looks = [
        beside.totals(METRICS % {"rows": rows, "batches": n}) for rows, n in ((10, 1), (70, 4))
    ]
    between = beside.means(*looks)
    assert (between["batch_rows"], between["queued_rows"], between["queue_ms"]) == (20.0, 7.0, 0.0)


def test_a_run_says_and_draws_what_went_on_beside_it(
    manifest_only: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "a.html"
    metrics = tmp_path / "metrics"
    metrics.write_text(METRICS % {"rows": 1, "batches": 1})
    with null_server("grpc", tmp_path) as port, serve_folder(tmp_path) as metrics_port:
        flags = f"--url grpc://127.0.0.1:{port} --rows 1 --seconds 1 --warmup 0 --requests 5 \
            --metrics http://127.0.0.1:{metrics_port}/metrics --slow-readers 0.5 --html {page} \
            --no-calibration --json -".split()
        assert command.main([str(manifest_only), *flags]) == 0
    run = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert run["slow_readers"]["waiting"] > 0
    assert page.read_text().count("<svg") == 4
    assert "rows a batch" in page.read_text()


def test_what_became_of_requests_is_said_in_words() -> None:
    run = {
        "wire": "grpc",
        "rows": 1,
        "after_sigterm": {"in_flight": {"ok": 3}, "later": {}},
        "slow_readers": {"ok": 1200, "UNAVAILABLE": 2, "waiting": 5},
    }
    said = figures.sentence(run)
    assert "in flight at the SIGTERM 3 ok; asked after it nothing; " in said
    assert said.endswith("slow readers' requests 1,200 ok, 2 UNAVAILABLE, 5 waiting")


@contextmanager
def serve_folder(folder: Path) -> Iterator[int]:
    handler = partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--ranking 8+16", "--ranking: grpc carries predictor.proto"),
        ("--ranking 0+0 --wire http-json", "invalid parse_context value"),
        ("--slow-readers 0.5 --wire http3", "take a wire over TCP"),
        ("--slow-readers 2", "must be from 0 to 1"),
        ("--metrics 127.0.0.1:8000", "expected http://HOST:PORT/metrics"),
    ],
)
def test_flags_that_make_no_sense_are_refused(
    flags: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        command.main(["unused", *flags.split()])
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


def test_an_api_key_goes_with_every_request_and_into_no_manifest(
    manifest_only: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        target(KINDS["grpc"], "grpc://h:1", "", api_key="k").headers["authorization"] == "Bearer k"
    )
    key = tmp_path / "key"
    key.write_text("secret-1\n")
    with null_server("grpc", tmp_path) as port:
        flags = f"--rows 1 --seconds 0.1 --warmup 0 --requests 5 --no-calibration --json - \
            --url grpc://127.0.0.1:{port} --api-key-file".split()
        assert command.main([str(manifest_only), *flags, str(key)]) == 0
        assert command.main([str(manifest_only), *flags, "nowhere"]) == FAILED
    printed = capsys.readouterr()
    assert "secret" not in printed.out + printed.err
    assert "narsil bench: --api-key-file nowhere: No such file or directory" in printed.err


def test_a_user_larger_than_the_model_is_refused(
    manifest_only: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--wire", "http-json", "--ranking", "99+1"]
    assert command.main([str(manifest_only), *flags]) == FAILED
    assert "--ranking 99+1: the model has" in capsys.readouterr().err
