"""The command as a user runs it: a process, real ports, real signals."""

import asyncio
import socket
import subprocess
from pathlib import Path

import httpx
import pytest

from app.cli import main
from backends.torch_dlrm.backend import TorchDlrmBackend
from scheduler.errors import Code
from scheduler.types import Batch, InferRequest
from tests.e2e.clients import ask, load, served_by, until
from tests.e2e.pasted import check_lines
from tests.e2e.process import NARSIL, narsil_serve
from tests.fixtures.requests import as_json, as_protobuf, random_request
from tests.fixtures.scores import assert_same_scores
from tests.fixtures.wires import WIRES, Answer, connect


async def is_unready(probe: httpx.AsyncClient) -> bool:
    return (await probe.get("/readyz")).status_code == 503


async def has_waiting(probe: httpx.AsyncClient, rows: int) -> bool:
    metrics = (await probe.get("/metrics")).text
    return f'narsil_queue_depth_rows{{model="fake"}} {rows}.0' in metrics


async def all_answered(answers: list[Answer], count: int) -> bool:
    return len(answers) == count


async def test_sigterm_under_load_answers_every_request_rightly_and_exits_zero(
    small_artifact: Path, small_backend: TorchDlrmBackend, tmp_path: Path
) -> None:
    spec = small_backend.spec
    requests = [random_request(spec, rows=1 + seed % 7, seed=seed) for seed in range(40)]
    arguments = [str(small_artifact), "--server-drain-delay-s=1", "--server-grace-s=10"]
    with narsil_serve(tmp_path, arguments) as process:
        served = served_by(process.urls, tmp_path)
        stop = asyncio.Event()
        answered: list[Answer] = []

        async def client(name: str) -> list[tuple[InferRequest, Answer]]:
            async with connect(name, served) as wire:
                body = as_json(requests[0], spec) if wire.json else as_protobuf(requests[0])
                answered.append(await wire.send(body))
                return await load(wire, spec, requests, stop)

        async with asyncio.TaskGroup() as group:
            loads = [group.create_task(client(name)) for name in (*WIRES, *WIRES)]
            await until(lambda: all_answered(answered, len(loads)))
            process.terminate()
            async with httpx.AsyncClient(base_url=process.urls["admin"], timeout=60) as probe:
                await until(lambda: is_unready(probe))
                assert (await probe.get("/livez")).status_code == 200
            stop.set()
        code, _ = await asyncio.to_thread(process.wait)
    answers = [pair for loaded in loads for pair in loaded.result()]
    assert len(answers) >= len(loads)
    expected = {
        request: small_backend.prepare(Batch((request,)))()["default"] for request in requests
    }
    for request, answer in answers:
        assert not answer.codes, answer.detail
        assert_same_scores(answer.scores["default"], expected[request])
    assert code == 0


async def test_what_was_admitted_before_sigterm_is_answered_without_a_drain_delay(
    tmp_path: Path,
) -> None:
    # Held back by the delay until the stop: all of them wait when it comes.
    arguments = ["--backend=fake", "--scheduler-max-delay-s=60", "--server-drain-delay-s=0"]
    with narsil_serve(tmp_path, arguments) as process:
        served = served_by(process.urls, tmp_path)

        async with asyncio.TaskGroup() as group:
            clients = [group.create_task(ask(served, name, 5)) for name in WIRES]
            async with httpx.AsyncClient(base_url=process.urls["admin"], timeout=60) as probe:
                await until(lambda: has_waiting(probe, rows=50))  # 25 requests of 2 rows
            process.terminate()
        code, log = await asyncio.to_thread(process.wait)
    for answers in clients:
        for answer in answers.result():
            assert not answer.codes, answer.detail
    assert code == 0, log


@pytest.mark.parametrize("kind", ["folder", pytest.param("bare file", marks=pytest.mark.slow)])
def test_every_line_of_the_banner_works_when_pasted(
    small_artifact: Path, tmp_path: Path, kind: str
) -> None:
    model = small_artifact if kind == "folder" else small_artifact / "model.pt"
    with narsil_serve(tmp_path, [str(model)]) as process:
        lines = process.banner.partition("Try it:")[2].split("\n  ")[1:]
        assert len(lines) == 3
        check_lines(lines, tmp_path)


def test_a_taken_port_ends_the_command_and_is_named(tmp_path: Path) -> None:
    with narsil_serve(tmp_path, ["--backend=fake"]) as process:
        port = process.urls["http"].rsplit(":", 1)[1]
        done = subprocess.run(
            [NARSIL, "serve", "--backend=fake", f"--http-port={port}"],
            cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert port in done.stderr
    assert "; --http-port takes another" in done.stderr
    assert '(make serve ARGS="--http-port 0")' in done.stderr
    assert "Traceback" not in done.stderr


def test_a_path_that_leads_nowhere_is_noticed_before_a_port_is_opened(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        flag = f"--http-port={taken.getsockname()[1]}"
        done = subprocess.run(
            [NARSIL, "serve", "nowhere", flag], cwd=tmp_path, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == (
        "narsil: nowhere does not exist; make one with: narsil export nowhere --preset reference,"
        " or --from FILE for weights of your own\n"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["serve", "nowhere"], 1, "nowhere"),
        (["serve", "--http-prot=1"], 2, "--http-prot"),
        (["predict", "nowhere.json"], 1, "nowhere.json"),
        (["bench", "nowhere"], 1, "nowhere"),
    ],
)
def test_a_wrong_command_line_ends_with_one_plain_sentence(
    tmp_path: Path, arguments: list[str], code: int, named: str
) -> None:
    free = ["--http-port=0", "--grpc-port=0", "--http3-port=0", "--admin-port=0"]
    extra = [flag for flag in free if arguments[0] == "serve" and "--http-po" not in arguments[-1]]
    done = subprocess.run(
        [NARSIL, *arguments, *extra], cwd=tmp_path, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert named in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["serve", "--http-port=high"], "high"),
        (["serve", "--backend=nope"], "nope"),
        (["nope"], "nope"),
    ],
)
def test_a_command_line_that_makes_no_sense_ends_with_two(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line


async def test_a_second_sigterm_answers_everybody_unavailable_and_exits_zero(
    tmp_path: Path,
) -> None:
    batches_of_one = ["--backend-compute-s=30", "--backend-max-batch-rows=2"]
    arguments = ["--backend=fake", *batches_of_one, "--server-drain-delay-s=30"]
    with narsil_serve(tmp_path, arguments) as process:
        served = served_by(process.urls, tmp_path)

        async with asyncio.TaskGroup() as group:
            clients = [group.create_task(ask(served, name, 3)) for name in WIRES]
            async with httpx.AsyncClient(base_url=process.urls["admin"], timeout=60) as probe:
                # Of 30 rows 2 run, and 2 are gathered ahead.
                await until(lambda: has_waiting(probe, rows=26))
                process.terminate()
                await until(lambda: is_unready(probe))
            process.terminate()
        code, log = await asyncio.to_thread(process.wait)
    for answers in clients:
        for answer in answers.result():
            assert answer.codes == {Code.UNAVAILABLE}
    assert code == 0, log
