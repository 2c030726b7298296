"""``narsil serve --frontends``: several processes, one server to its clients."""

import asyncio
import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import grpc.aio
import httpx
import pytest

from app.cli import main
from backends.fake import FakeBackend
from scheduler.errors import Code
from scheduler.types import Batch, InferRequest
from tests.e2e.clients import served_by, until
from tests.e2e.process import NARSIL, Process, narsil_serve
from tests.fixtures.requests import as_json, as_protobuf, random_request
from tests.fixtures.scores import assert_same_scores
from tests.fixtures.wires import WIRES, Wire, connect

FAKE = FakeBackend(FakeBackend.Options())
SPEC = FAKE.spec
ARGUMENTS = ["--backend=fake", "--backend-remembered-batches=0", "--frontends=2"]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A server with two front ends, for all tests of this module."""
    with narsil_serve(tmp_path_factory.mktemp("frontends"), ARGUMENTS) as process:
        yield process


def children(process: Process) -> list[int]:
    """Return the front ends' processes."""
    pid = process.popen.pid
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def ask(wire: Wire, request: InferRequest) -> None:
    """Ask, and see that the scores are right."""
    answer = await wire.send(as_json(request, SPEC) if wire.json else as_protobuf(request))
    assert not answer.codes, answer.detail
    expected = FAKE.prepare(Batch((request,)))()["default"]
    assert_same_scores(answer.scores["default"], expected)


async def counted(process: Process) -> dict[str, float]:
    """Return every counter, and every count of a histogram, by its series."""
    async with httpx.AsyncClient(base_url=process.urls["admin"], timeout=60) as client:
        text = (await client.get("/metrics")).text
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("narsil_"))
    names = ("_total", "_count", "_sum", "_bucket")
    return {name: float(value) for name, value in pairs if name.split("{")[0].endswith(names)}


async def answered(process: Process) -> float:
    """Return how many requests were answered with scores."""
    series = await counted(process)
    return sum(n for name, n in series.items() if re.match(r'narsil_requests.*code="ok"', name))


async def test_every_wire_is_answered_by_front_ends_and_all_is_counted_in_one_place(
    process: Process,
) -> None:
    served = served_by(process.urls, process.folder)
    before = await answered(process)
    for number, name in enumerate(WIRES * 2):
        async with connect(name, served) as wire:
            await ask(wire, random_request(SPEC, 1 + number, seed=number))

    async def all_counted() -> bool:
        return await answered(process) == before + 2 * len(WIRES)

    await until(all_counted)
    async with httpx.AsyncClient(base_url=process.urls["admin"], timeout=60) as client:
        assert "narsil_frontends 2.0" in (await client.get("/metrics")).text
    async with httpx.AsyncClient(base_url=process.urls["http"], timeout=60) as client:
        assert (await client.get("/readyz")).json() == {"ready": True}
        assert (await client.get("/v1/models")).json()["models"][0]["name"] == "fake"


def test_front_ends_have_no_torch_and_are_small(process: Process) -> None:
    for pid in children(process):
        assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()
        resident_kib = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
        assert resident_kib
        assert int(resident_kib[1]) < 200 * 1024


@pytest.mark.slow
def test_what_a_front_end_imports_has_no_backend_and_no_server() -> None:
    code = (
        "import sys, app.frontends.process, app.plugins as p;"
        "[p.transport(name) for name in ('http', 'grpc', 'http3')];"
        "print({'torch', 'fbgemm_gpu', 'app.server', 'backends'} & {*sys.modules})"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"


def _served(arguments: Sequence[str], folder: Path) -> tuple[int, str]:
    ran = subprocess.run(
        [NARSIL, "serve", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    return ran.returncode, ran.stderr


@pytest.mark.slow
async def test_a_port_that_front_ends_share_is_taken_for_any_other_server(
    process: Process, tmp_path: Path
) -> None:
    for name, port in ((name, urlsplit(process.urls[name]).port) for name in ("http", "grpc")):
        arguments = [*ARGUMENTS, f"--transports={name}", f"--{name}-port={port}"]
        code, said = await asyncio.to_thread(_served, arguments, tmp_path)
        assert code == 1
        assert f"--{name}-port takes another" in said


async def keep_asking(name: str, process: Process, right: list[str], stop: asyncio.Event) -> None:
    """Ask on one connection until it is cut, or told to stop; note each right answer."""
    lost = (httpx.TransportError, grpc.aio.AioRpcError, ConnectionError)
    with contextlib.suppress(*lost):
        async with connect(name, served_by(process.urls, process.folder)) as wire:
            request = random_request(SPEC, 3, seed=1)
            body = as_json(request, SPEC) if wire.json else as_protobuf(request)
            while not stop.is_set():
                answer = await wire.send(body)
                if Code.UNAVAILABLE in answer.codes:  # gRPC's word for a connection that is cut
                    return
                assert not answer.codes, answer.detail
                right.append(name)


async def listening(process: Process) -> bool:
    """Say whether both front ends listen."""
    async with httpx.AsyncClient(base_url=process.urls["admin"], timeout=60) as probe:
        assert (await probe.get("/readyz")).status_code == 200
        return "narsil_frontends 2.0" in (await probe.get("/metrics")).text


async def test_what_is_the_same_for_all_front_ends_is_logged_once(process: Process) -> None:
    start, _, _ = process.log.partition("; its connections are lost")  # the next test's doing
    for once in ("UDP datagrams come", "development certificate"):
        assert start.count(once) == 1


async def test_a_killed_front_end_loses_its_connections_and_nothing_else(process: Process) -> None:
    stop, right = asyncio.Event(), list[str]()
    victim, other = children(process)
    scrapes = []

    async def restarted() -> bool:
        scrapes.append(await counted(process))
        return victim not in children(process) and await listening(process)

    async with asyncio.TaskGroup() as group:
        for name in ("grpc", "http-json", "http-protobuf") * 4:
            group.create_task(keep_asking(name, process, right, stop))
        while len(right) < 50:  # noqa: ASYNC110  # another process tells us nothing by itself
            await asyncio.sleep(0.01)
        scrapes.append(await counted(process))
        os.kill(victim, signal.SIGKILL)
        await until(restarted)
        stop.set()
    scrapes.append(await counted(process))
    for earlier, later in itertools.pairwise(scrapes):
        assert all(later[name] >= value for name, value in earlier.items())
    assert other in children(process)
    assert re.search(r"front end [01] listens again: process \d+", process.log)
    assert "loading the model ..." in process.log
    served = served_by(process.urls, process.folder)
    for number in range(12):
        async with connect(WIRES[number % len(WIRES)], served) as wire:
            await ask(wire, random_request(SPEC, 2, seed=number))


@pytest.mark.slow
async def test_without_its_engine_no_front_end_stays_and_who_waits_is_told(tmp_path: Path) -> None:
    arguments = [*ARGUMENTS, "--backend-compute-s=30", "--scheduler-inline-below-s=0"]
    with narsil_serve(tmp_path, arguments, ("http", "grpc", "admin")) as process:
        served = served_by(process.urls, tmp_path)
        pids = children(process)
        body = as_protobuf(random_request(SPEC, 1, seed=1))

        async def answer(name: str) -> frozenset[Code]:
            async with connect(name, served) as wire:
                return (await wire.send(body)).codes

        waiting = [asyncio.create_task(answer(name)) for name in ("grpc", "http-protobuf") * 2]

        async def all_there() -> bool:
            async with httpx.AsyncClient(base_url=process.urls["admin"], timeout=60) as client:
                text = (await client.get("/metrics")).text
            found = re.findall(r"^narsil_frontend_requests\{.*\} (\S+)$", text, re.MULTILINE)
            return sum(map(float, found)) == len(waiting)

        await until(all_there)
        process.popen.kill()
        for codes in await asyncio.gather(*waiting):
            assert Code.UNAVAILABLE in codes

        async def gone() -> bool:
            return not any(_runs(pid) for pid in pids)

        await until(gone)
        with pytest.raises(httpx.ConnectError):
            await httpx.AsyncClient(timeout=60).get(process.urls["http"])


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_sigterm_answers_what_is_under_way_and_ends_everything(process: Process) -> None:
    served = served_by(process.urls, process.folder)
    pids = children(process)
    async with (
        connect("http-protobuf", served) as wire,
        httpx.AsyncClient(base_url=process.urls["http"], timeout=60) as probe,
    ):
        await ask(wire, random_request(SPEC, 2, seed=2))
        process.terminate()

        async def unready() -> bool:
            return (await probe.get("/readyz")).status_code == 503

        await until(unready)
        await ask(wire, random_request(SPEC, 2, seed=3))  # it serves on for the drain delay
        process.popen.send_signal(signal.SIGTERM)
    code, log = await asyncio.to_thread(process.wait)
    assert code == 0, log
    assert not any(_runs(pid) for pid in pids)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--transports=admin"], "server.frontends: no transport that front ends could serve"),
        (["--server-frontend-slot-bytes=1000000"], "frontend_slot_bytes must be a power of two"),
        (["--frontends=65"], "frontends must be 0 to 64, got 65"),
    ],
)
def test_what_front_ends_cannot_do_is_refused(
    arguments: Sequence[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--backend=fake", "--frontends=2", *arguments]) == 2
    assert said in capsys.readouterr().err
