"""A server in a process of its own, whose memory can be looked at."""

import asyncio
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from backends.fake import FakeBackend, FakeOptions
from tests.e2e.clients import served_by
from tests.e2e.process import Process, narsil_serve
from tests.fixtures.requests import as_json, as_protobuf, random_request
from tests.fixtures.wires import connect

MIB = 1 << 20
FAKE = FakeBackend(FakeOptions())
FAKE_ARGUMENTS = ("--backend=fake", "--backend-remembered-batches=0")
PATIENCE_S = 20.0
# One client of each transport, none of which may notice.
GOOD_WIRES = ("grpc", "http-json", "http3-protobuf")


@contextmanager
def victim(folder: Path, *arguments: str) -> Iterator[Process]:
    """Serve the fake model over every transport."""
    transports = ("http", "grpc", "http3")
    with narsil_serve(folder, [*FAKE_ARGUMENTS, *arguments], transports) as process:
        yield process


def memory_bytes(process: Process) -> int:
    """Return the resident memory of the server."""
    pages = Path(f"/proc/{process.popen.pid}/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


async def others_are_served(process: Process, rows: int = 3) -> None:
    """Ask as an ordinary client, over each transport; the right scores must come in time."""
    served = served_by(process.urls, process.folder)
    request = random_request(served.backend.spec, rows, seed=rows)
    for name in GOOD_WIRES:
        async with asyncio.timeout(PATIENCE_S), connect(name, served) as wire:
            body = as_json(request, served.backend.spec) if wire.json else as_protobuf(request)
            answer = await wire.send(body)
        assert not answer.codes, answer.detail
        assert np.array_equal(answer.scores["default"], FAKE.score(request))
