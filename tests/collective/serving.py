"""The collective transport on loopback, and callers of it in processes of their own."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.fake import FakeBackend, FakeOptions
from scheduler.engine import Engine
from scheduler.options import SchedulerOptions
from tests.contract.behaviours import MAX_ROWS
from tests.fixtures.gates import Gate
from tests.fixtures.serving import Recorder
from transports.collective.server import CollectiveTransport

LIMIT = 1 << 20
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Met:
    """A running server of the fake backend."""

    engine: Engine
    backend: FakeBackend
    recorder: Recorder
    transport: CollectiveTransport
    url: str

    def hold(self) -> Gate:
        """Hold every run from now on, until the gate is opened."""
        self.backend.before_run = gate = Gate()
        return gate


@contextlib.asynccontextmanager
async def collective_served(**options: Any) -> AsyncIterator[Met]:
    """Serve the fake backend; ``options`` are the transport's."""
    recorder = Recorder()
    # On the loop itself a held run could never be let go.
    engine = Engine(SchedulerOptions(inline_below_s=0.0, max_request_rows=MAX_ROWS), recorder)
    backend = FakeBackend(FakeOptions(max_batch_rows=64))
    transport = CollectiveTransport(CollectiveTransport.Options(port=0, **options))
    (url,) = await transport.start(engine)
    await engine.load(backend)
    engine.open()
    try:
        yield Met(engine, backend, recorder, transport, url)
    finally:
        await transport.stop(0.2)
        await engine.close(1.0)


class Peer:
    """One caller, a process; ``said`` awaits what it has to say."""

    def __init__(self) -> None:
        self.saying: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def said(self, key: str) -> Any:
        """Return the next value that it says of ``key``."""
        while True:
            what = await self.saying.get()
            if key in what:
                return what[key] if key != "code" else (what["code"], what["detail"])
            assert "ended" not in what, f"a peer ended before it said {key}"

    async def kill(self) -> None:
        """End the process at once."""
        os.kill(await self.said("pid"), signal.SIGKILL)


class Peers:
    """Fork one caller after another from a process that has imported PyTorch."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._numbers = itertools.count(1)
        self._peers: defaultdict[int, Peer] = defaultdict(Peer)

    def act(self, act: str, **told: Any) -> Peer:
        """Let a new peer act; see ``callers``."""
        number = next(self._numbers)
        line = json.dumps({"peer": number, "act": act, **told})
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        return self._peers[number]

    async def listen(self) -> None:
        """Pass on what peers say."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            what = json.loads(line)
            self._peers[what["peer"]].saying.put_nowait(what)

    async def ready(self) -> None:
        """Wait until peers can be forked."""
        await self._peers[0].said("ready")


@contextlib.asynccontextmanager
async def forked_peers() -> AsyncIterator[Peers]:
    """Yield what forks peers."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.collective.callers", cwd=ROOT, limit=1 << 24,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    peers = Peers(process)
    listening = asyncio.create_task(peers.listen())
    try:
        yield peers
    finally:
        process.kill()
        await process.wait()
        await listening
