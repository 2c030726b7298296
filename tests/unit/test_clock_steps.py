"""The wall clock may step at any time: no deadline, limit or timer follows it."""

import ast
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from backends.fake import FakeBackend, FakeOptions
from tests.fixtures.raw_grpc import framed, head, raw_grpc
from tests.fixtures.requests import as_json, as_protobuf, random_request
from tests.fixtures.serving import serving
from tests.fixtures.wires import EVERY_WIRE, connect

ROOT = Path(__file__).parents[2]
WALL = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow")}
# Where the date is what is wanted: of certificates, of files, to be shown.
ALLOWED = {
    "app/deltas.py": 1,
    "app/log_format.py": 1,
    "app/observe.py": 2,
    "app/repository/remote.py": 1,
    "app/tracing/spans.py": 2,
    "scheduler/updates.py": 1,
    "transports/http3/server.py": 1,
    "transports/statistics.py": 1,
    "transports/tls.py": 1,
}


def wall_clocks(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            owner = node.value
            name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            if (name, node.attr) in WALL:
                yield f"{name}.{node.attr}"
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from (one.name for one in node.names if one.name in {"time", "time_ns"})


def test_only_dates_come_from_the_wall_clock() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): len(list(wall_clocks(path)))
        for folder in ("app", "backends", "scheduler", "transports")
        for path in (ROOT / folder).rglob("*.py")
    }
    assert len(found) > 100
    assert {path: count for path, count in found.items() if count} == ALLOWED


async def test_requests_are_served_while_the_wall_clock_jumps_by_days(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client is in this process too, and grpcio's reckons its deadlines by the wall clock."""
    backend = FakeBackend(FakeOptions(max_batch_rows=64))
    async with serving(backend, certificates) as served:
        spec, steps, real = served.engine.spec(""), random.Random(1), time.time
        monkeypatch.setattr(time, "time", lambda: real() + steps.uniform(-9e5, 9e5))
        request = random_request(spec, 2, seed=1)
        for name in EVERY_WIRE:
            async with connect(name, served) as wire:
                body = as_json(request, spec) if wire.json else as_protobuf(request)
                timeout_s = None if name.startswith("grpc") else 20.0
                for _ in range(5):
                    assert not (await wire.send(body, timeout_s=timeout_s)).codes
        async with raw_grpc(int(served.urls["grpc"].rpartition(":")[2])) as client:
            asked = client.ask([*head(), (b"grpc-timeout", b"20S")], framed(as_protobuf(request)))
            assert (await client.answer(asked)).status == 0
