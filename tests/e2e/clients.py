"""Clients of a server in another process."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from backends.fake import FakeBackend
from scheduler.engine import Engine
from scheduler.observer import Observer
from scheduler.options import SchedulerOptions
from scheduler.types import InferRequest, ModelSpec
from tests.fixtures.requests import as_json, as_protobuf, random_request
from tests.fixtures.serving import Recorder, Served
from tests.fixtures.wires import Answer, Wire, connect


def served_by(urls: dict[str, str], folder: Path) -> Served:
    """Return what ``connect`` needs to reach another process."""
    engine = Engine(SchedulerOptions(), Observer())
    certificate = folder / ".narsil/tls/certificate.pem"
    return Served(engine, FakeBackend(FakeBackend.Options()), Recorder(), urls, certificate)


async def load(
    wire: Wire, spec: ModelSpec, requests: list[InferRequest], stop: asyncio.Event
) -> list[tuple[InferRequest, Answer]]:
    """Send ``requests`` round and round, one after another, until told to stop."""
    answers: list[tuple[InferRequest, Answer]] = []
    while not stop.is_set():
        request = requests[len(answers) % len(requests)]
        body = as_json(request, spec) if wire.json else as_protobuf(request)
        answers.append((request, await wire.send(body)))
    return answers


async def ask(served: Served, name: str, count: int, model: str = "") -> list[Answer]:
    """Send ``count`` requests of 2 rows at once to a ``model`` of the fake backend."""
    spec = served.backend.spec
    request = random_request(spec, 2, seed=1)
    async with connect(name, served) as wire:
        body = as_json(request, spec) if wire.json else as_protobuf(request)
        return list(await asyncio.gather(*(wire.send(body, model) for _ in range(count))))


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Ask again and again: another process tells us nothing by itself."""
    while not await holds():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
