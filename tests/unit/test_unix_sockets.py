"""Unix domain sockets: who gets a path, who may connect, and what is left behind."""

import asyncio
import contextlib
import os
import socket
import stat
import subprocess
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import uvloop

from tests.fixtures.gates import serving
from tests.fixtures.grpc_calls import Client
from tests.fixtures.raw_http import RawConnection, post
from tests.fixtures.stub_engine import StubEngine
from tests.fixtures.stub_serving import assert_no_task_remains, json_body, problem
from transports.base import Transport
from transports.grpc.options import GrpcOptions
from transports.grpc.server import GrpcTransport
from transports.http.server import HttpOptions, HttpTransport
from transports.unix import UnixAddress, listening_socket

BOTH = pytest.mark.parametrize("name", ["http", "grpc"])


def transport(name: str, path: Path, **options: Any) -> Transport:
    """Return a transport that listens on ``path`` alone, unless told of a host."""
    given = {"host": "", "port": 0, "unix_path": str(path), **options}
    if name == "http":
        return HttpTransport(HttpOptions(**given))
    return GrpcTransport(GrpcOptions(**given))


@contextlib.asynccontextmanager
async def served(name: str, path: Path, **options: Any) -> AsyncIterator[tuple[str, ...]]:
    """Serve on ``path`` and yield the addresses."""
    async with serving() as state:
        state.gate.open()
        server = transport(name, path, **options)
        addresses = await server.start(state.engine)
        try:
            yield addresses
        finally:
            await server.stop(1.0)


async def answers(name: str, path: Path) -> bool:
    """Ask the server on ``path`` for its health as a client would."""
    if name == "http":
        async with httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=str(path)), timeout=60
        ) as client:
            return (await client.get("http://localhost/livez")).status_code == 200
    unshared = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"unix:{path}", unshared) as channel:
        return bool(await Client(channel, 0).check())


def dead_socket(path: Path) -> None:
    """Leave what a server that was killed leaves."""
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))


@BOTH
async def test_a_server_may_listen_on_a_path_alone_and_removes_it(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "narsil.sock"
    async with served(name, path) as addresses:
        assert addresses == (f"unix:{path}",)
        assert await answers(name, path)
    assert not path.exists()


@BOTH
async def test_a_server_may_listen_on_a_path_and_a_port(name: str, tmp_path: Path) -> None:
    path = tmp_path / "narsil.sock"
    async with served(name, path, host="127.0.0.1") as (tcp, unix):
        assert tcp.startswith(f"{name}://127.0.0.1:")
        assert unix == f"unix:{path}"
        assert await answers(name, path)
        port = int(tcp.rpartition(":")[2])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()


@BOTH
@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
async def test_the_file_has_the_mode_asked_for(name: str, tmp_path: Path, mode: int) -> None:
    path = tmp_path / "narsil.sock"
    umask = os.umask(0o022)
    try:
        async with served(name, path, unix_mode=f"{mode:o}"):
            assert stat.S_IMODE(path.stat().st_mode) == mode
            assert os.umask(0o022) == 0o022
    finally:
        os.umask(umask)


@BOTH
async def test_the_path_of_a_dead_server_is_taken_over(name: str, tmp_path: Path) -> None:
    path = tmp_path / "narsil.sock"
    dead_socket(path)
    async with served(name, path):
        assert await answers(name, path)


@BOTH
async def test_the_path_of_a_live_server_is_not(name: str, tmp_path: Path) -> None:
    path = tmp_path / "narsil.sock"
    async with served(name, path):
        with pytest.raises(OSError, match=f"unix_path: cannot listen on {path}: another server"):
            async with served(name, path):
                pass
        assert await answers(name, path)


@BOTH
async def test_the_path_of_a_server_too_busy_to_accept_is_not(name: str, tmp_path: Path) -> None:
    path = tmp_path / "narsil.sock"
    with socket.socket(socket.AF_UNIX) as busy, contextlib.ExitStack() as clients:
        busy.bind(str(path))
        busy.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:  # until its backlog is full
                client = clients.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                client.connect(str(path))
        with pytest.raises(OSError, match="another server listens there"):
            async with served(name, path):
                pass


@BOTH
async def test_a_file_that_is_no_socket_is_left_alone(name: str, tmp_path: Path) -> None:
    path = tmp_path / "narsil.sock"
    path.write_text("precious")
    with pytest.raises(OSError, match=f"{path}: a file that is no socket is there"):
        async with served(name, path):
            pass
    assert path.read_text() == "precious"


@BOTH
@pytest.mark.parametrize(
    ("place", "why"), [("absent/narsil.sock", "No such file"), ("x" * 120, "too long")]
)
async def test_a_path_that_cannot_be_is_named(
    name: str, tmp_path: Path, place: str, why: str
) -> None:
    path = tmp_path / place
    with pytest.raises(OSError, match=f"unix_path: cannot listen on {path}: .*{why}"):
        async with served(name, path):
            pass
    assert not path.exists()


@BOTH
async def test_a_path_may_hold_what_a_url_must_escape(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a b%20#?.sock"
    async with served(name, path):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


async def test_a_path_that_another_has_taken_meanwhile_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "narsil.sock"
    async with served("http", path):
        path.unlink()
        dead_socket(path)
    assert path.exists()


def test_of_servers_that_start_at_once_one_gets_the_path_of_the_dead(tmp_path: Path) -> None:
    path = tmp_path / "narsil.sock"
    dead_socket(path)
    together = threading.Barrier(8)

    def start(_: int) -> socket.socket | str:
        together.wait()
        try:
            return UnixAddress(str(path), 0o600).claim(lambda free: listening_socket(free, 16))
        except OSError as error:
            return error.strerror or ""

    with ThreadPoolExecutor(8) as threads:
        ends = list(threads.map(start, range(8)))
    (winner,) = (end for end in ends if isinstance(end, socket.socket))
    reasons = [end for end in ends if isinstance(end, str)]
    assert all(reason.endswith("another server listens there") for reason in reasons)
    with winner, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


async def test_a_taken_path_leaves_the_port_free(tmp_path: Path) -> None:
    path = tmp_path / "narsil.sock"
    path.touch()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(OSError, match="no socket"):
        async with served("http", path, host="127.0.0.1", port=port):
            pass
    socket.create_server(("127.0.0.1", port)).close()


async def test_curl_gets_scores_through_the_path(tmp_path: Path) -> None:
    path, body = tmp_path / "narsil.sock", json_body([0.5, 0.25]).decode()
    server = transport("http", path)
    await server.start(StubEngine())
    curl = ["curl", "-s", "--unix-socket", str(path), "http://localhost/v1/predict", "-d", body]
    done = await asyncio.to_thread(lambda: subprocess.run(curl, capture_output=True, check=True))
    assert '"default":[0.5,0.25]' in done.stdout.decode()
    await server.stop(1.0)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_stop_finishes_what_came_through_the_path_on_either_loop(
    tmp_path: Path, run: Callable[..., None]
) -> None:
    async def stop_under_way() -> None:
        path, engine, before = tmp_path / "narsil.sock", StubEngine(), asyncio.all_tasks()
        engine.gate.clear()
        server = transport("http", path)
        await server.start(engine)
        connections = [RawConnection(*await asyncio.open_unix_connection(path)) for _ in range(2)]
        finished, idle = connections
        await finished.send(post(json_body([0.5])))
        await engine.entered.wait()
        stopping = asyncio.create_task(server.stop(60.0))
        assert await idle.closed()
        assert not path.exists()
        engine.gate.set()
        assert (await finished.answer()).headers["connection"] == "close"
        await stopping
        for connection in connections:
            connection.writer.close()
        await assert_no_task_remains(before)

    run(stop_under_way())


async def test_errors_through_the_path_are_the_same_objects(tmp_path: Path) -> None:
    path = tmp_path / "narsil.sock"
    async with (
        served("http", path),
        httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path)), timeout=60) as client,
    ):
        answer = await client.post("http://localhost/v1/predict", content=b"{")
        problem(answer.content, 400)
