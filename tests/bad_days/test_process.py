"""A real process on days when the machine, or somebody on it, behaves badly."""

import asyncio
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import IO

import httpx
import pytest

from tests.abuse.victim import FAKE_ARGUMENTS, MIB, memory_bytes, others_are_served, victim
from tests.e2e.clients import load, served_by, until
from tests.e2e.process import NARSIL, Process
from tests.fixtures.raw_http import RawConnection, raw
from tests.fixtures.requests import random_request
from tests.fixtures.wires import connect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(110)]

# What a server that is well holds open besides connections: threads, sockets, libraries, pipes.
SPARE_FILES = 200
GET = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"


def cpu_s(process: Process) -> float:
    """Return the CPU time that the process has used."""
    fields = Path(f"/proc/{process.popen.pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(fields[index]) for index in (11, 12)) / 100


def fixed_ports(process: Process) -> list[str]:
    """Return the flags for the ports that ``process`` got."""
    urls = process.urls.items()
    return [f"--{name}-port={url.rpartition(':')[2]}" for name, url in urls]


def leave_files(process: Process, count: int) -> None:
    """Let ``process`` open so many files more, and no others ever."""
    open_files = len(list(Path(f"/proc/{process.popen.pid}/fd").iterdir()))
    resource.prlimit(process.popen.pid, resource.RLIMIT_NOFILE, (open_files + count,) * 2)


async def is_served(process: Process) -> bool:
    """Return whether a new connection gets an answer."""
    try:
        async with raw(process.urls["grpc"]), raw(process.urls["http"]) as connection:
            await connection.send(GET)
            return (await connection.answer()).status == 200
    except (ConnectionError, asyncio.IncompleteReadError):
        return False


async def test_after_a_sigkill_under_load_clients_see_an_end_and_a_restart_on_the_same_ports_serves(
    tmp_path: Path,
) -> None:
    with victim(tmp_path) as process:
        served = served_by(process.urls, tmp_path)
        spec = served.backend.spec
        requests = [random_request(spec, 3, seed=seed) for seed in range(5)]
        ports = fixed_ports(process)
        async with AsyncExitStack() as stack:
            wires = [
                await stack.enter_async_context(connect(name, served))
                for name in ("grpc", "http-json", "http-protobuf")
            ]
            stop = asyncio.Event()
            loads = [asyncio.create_task(load(wire, spec, requests, stop)) for wire in wires]
            await others_are_served(process)
            process.popen.kill()
            process.popen.wait()
            done, _ = await asyncio.wait(loads[1:], timeout=60)
            assert len(done) == 2  # gRPC's client answers each call, and goes on
            stop.set()
            ends = await asyncio.gather(*loads, return_exceptions=True)
            assert all(isinstance(end, httpx.TransportError) for end in ends[1:]), ends
            assert isinstance(ends[0], list)
    with victim(tmp_path, *ports) as again:
        await others_are_served(again)
        again.terminate()
        code, log = await asyncio.to_thread(again.wait)
    assert code == 0, log


async def test_thousands_of_connections_that_say_nothing_cost_little_and_are_cut(
    tmp_path: Path,
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(10_000, hard - 2 * SPARE_FILES)
    try:
        with victim(tmp_path, "--http-head-timeout-s=20") as process:
            before = memory_bytes(process)
            async with AsyncExitStack() as stack:
                silent: list[RawConnection] = []
                for _ in range(count):
                    url = process.urls["http"]
                    silent.append(await stack.enter_async_context(raw(url)))
                await others_are_served(process)
                assert memory_bytes(process) - before < 20 * MIB + count * 16 * 1024
                async with asyncio.timeout(90):
                    assert all(await asyncio.gather(*(each.closed() for each in silent)))
            await others_are_served(process)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_without_a_file_to_open_connections_that_are_open_live_on_and_new_ones_come_later(
    tmp_path: Path,
) -> None:
    with victim(tmp_path) as process:
        await others_are_served(process)
        leave_files(process, 20)
        async with raw(process.urls["http"]) as old, AsyncExitStack() as stack:
            await old.send(GET)
            assert (await old.answer()).status == 200
            for _ in range(100):  # the kernel takes them, the server cannot
                await stack.enter_async_context(raw(process.urls["http"]))
            for _ in range(3):
                before_s = cpu_s(process)
                await asyncio.sleep(1)
                await old.send(GET)
                assert (await old.answer()).status == 200
                assert cpu_s(process) - before_s < 0.5  # it does not ask again and again
        await until(lambda: is_served(process))
        await others_are_served(process)
        process.terminate()
        code, log = await asyncio.to_thread(process.wait)
        assert code == 0, log


async def test_a_scrape_every_100_ms_disturbs_nobody_and_takes_no_memory(tmp_path: Path) -> None:
    with victim(tmp_path, "--http-metrics=true") as process:
        async with httpx.AsyncClient(base_url=process.urls["http"], timeout=60) as scraper:
            await others_are_served(process)
            before, used_s = memory_bytes(process), cpu_s(process)
            for _ in range(50):
                answer = await scraper.get("/metrics")
                assert "narsil_requests_total" in answer.text
                await asyncio.sleep(0.1)
            # 5 s or more have passed.
            assert cpu_s(process) - used_s < 2.5
            await others_are_served(process)
            assert memory_bytes(process) - before < 20 * MIB


@contextmanager
def starting(folder: Path, full: str) -> Iterator[subprocess.Popen[str]]:
    """Serve over HTTP on a Unix domain socket, whose place is known without a banner."""
    with Path("/dev/full").open("w") as nowhere, (folder / "said").open("w") as said:
        out, log = (said if full == "log" else nowhere), (said if full == "banner" else nowhere)
        popen = start(folder, out, log)
        try:
            yield popen
        finally:
            popen.kill()
            popen.wait()


def start(folder: Path, stdout: IO[str], stderr: IO[str]) -> subprocess.Popen[str]:
    """Start the command."""
    sockets = ["--transports=http", "--http-host=", "--http-unix-path=http.sock"]
    return subprocess.Popen(
        [NARSIL, "serve", *FAKE_ARGUMENTS, *sockets, "--server-drain-delay-s=0"],
        cwd=folder, stdout=stdout, stderr=stderr, text=True,
    )  # fmt: skip


async def asked(folder: Path, path: str) -> int:
    """Return the status of a GET through the socket, once it is there."""
    transport = httpx.AsyncHTTPTransport(uds=str(folder / "http.sock"))
    async with httpx.AsyncClient(transport=transport, base_url="http://x", timeout=60) as client:
        return (await client.get(path)).status_code


@pytest.mark.parametrize("full", ["banner", "log", "both"])
async def test_a_full_disk_under_the_log_and_the_banner_does_not_end_the_server(
    tmp_path: Path, full: str
) -> None:
    with starting(tmp_path, full) as popen:
        async with asyncio.timeout(60):
            while True:
                try:
                    if await asked(tmp_path, "/readyz") == 200:
                        break
                except httpx.TransportError:
                    assert popen.poll() is None
                await asyncio.sleep(0.05)
            for _ in range(20):
                assert await asked(tmp_path, "/v1/models/absent") == 404
            popen.send_signal(signal.SIGTERM)
            await asyncio.to_thread(popen.wait)
    assert popen.returncode == 0
    if full == "banner":
        assert "cannot print where the server listens" in (tmp_path / "said").read_text()


def test_a_disk_that_is_full_ends_an_export_with_one_sentence_and_nothing_half_written(
    tmp_path: Path,
) -> None:
    limit = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (2000, 2000))"
    run = f"{limit}; from app.cli import main; raise SystemExit(main())"
    done = subprocess.run(
        [sys.executable, "-c", run, "export", str(tmp_path / "model"), "--preset", "small"],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "File too large" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
