"""``narsil serve --frontends``: a process that hangs is as good as dead, and found out."""

import asyncio
import itertools
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from scheduler.errors import Code
from tests.e2e.clients import served_by, until
from tests.e2e.process import Process, narsil_serve
from tests.e2e.test_frontends import ARGUMENTS, SPEC, ask, children, counted, listening
from tests.fixtures.requests import as_json, as_protobuf, random_request
from tests.fixtures.wires import WIRES, connect

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A server that soon gives up what hangs, for all tests of this module."""
    arguments = [*ARGUMENTS, "--server-frontend-hung-s=3"]
    with narsil_serve(tmp_path_factory.mktemp("hung"), arguments) as process:
        yield process


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Have a process of ours hang within the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        if Path(f"/proc/{pid}").exists():
            os.kill(pid, signal.SIGCONT)


async def test_a_front_end_that_hangs_is_replaced_and_the_other_serves_on(process: Process) -> None:
    victim, other = children(process)
    scrapes = [await counted(process)]

    async def replaced() -> bool:
        scrapes.append(await counted(process))
        return victim not in children(process) and await listening(process)

    with stopped(victim):
        await until(replaced)
    for earlier, later in itertools.pairwise(scrapes):
        assert all(later[name] >= value for name, value in earlier.items())
    assert other in children(process)
    assert "has said nothing for 3 s: it is killed" in process.log
    served = served_by(process.urls, process.folder)
    for number, name in enumerate(WIRES * 2):
        async with connect(name, served) as wire:
            await ask(wire, random_request(SPEC, 2, seed=number))


async def test_while_the_engine_hangs_all_are_told_so_and_once_it_goes_on_all_are_served(
    process: Process,
) -> None:
    served = served_by(process.urls, process.folder)
    request = random_request(SPEC, 2, seed=1)

    async def ready() -> bool:
        async with httpx.AsyncClient(base_url=process.urls["http"], timeout=60) as probe:
            return bool((await probe.get("/readyz")).status_code == 200)

    async def answer(name: str) -> frozenset[Code]:
        async with connect(name, served) as wire:
            sent = await wire.send(as_json(request, SPEC) if wire.json else as_protobuf(request))
            return sent.codes

    async def unready() -> bool:
        return not await ready()

    with stopped(process.popen.pid):
        waiting = [asyncio.create_task(answer(name)) for name in WIRES]  # nobody knows yet
        for codes in await asyncio.gather(*waiting):
            assert Code.UNAVAILABLE in codes
        await until(unready)
        for name in WIRES:
            assert Code.UNAVAILABLE in await answer(name)
    await until(ready)
    for name in WIRES:
        async with connect(name, served) as wire:
            await ask(wire, request)
