"""Cancels, deadlines, overload, failures and shutdown: the same over every wire."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from backends.fake import FakeBackend
from scheduler.errors import Code, ServingError
from scheduler.observer import Answered
from scheduler.options import SchedulerOptions
from scheduler.types import Batch
from tests.contract.conftest import encode
from tests.fixtures.behind_front_ends import MakeFrontEnds
from tests.fixtures.gates import Gate
from tests.fixtures.requests import random_request
from tests.fixtures.serving import Served, serving
from tests.fixtures.wires import EVERY_WIRE, Answer, Wire, connect

pytestmark = pytest.mark.asyncio(loop_scope="module")
# On the loop itself a held run could never be let go.
OPTIONS = SchedulerOptions(inline_below_s=0.0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(certificates: Path, front_ends: MakeFrontEnds) -> AsyncIterator[Served]:
    """One server for all tests but the one that ends it: starting it takes longer than they do."""
    backend = FakeBackend(FakeBackend.Options(max_batch_rows=64))
    async with serving(backend, certificates, OPTIONS, front_ends=front_ends()) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def served_fake(server: Served, fake: FakeBackend) -> Served:
    """The server with a model, and so a queue and a forecast, of the test's own."""
    await server.engine.swap(fake, OPTIONS)
    await server.settled()
    server.recorder.answers.clear()
    return replace(server, backend=fake)


@pytest_asyncio.fixture(loop_scope="module", params=EVERY_WIRE)
async def fake_wire(request: pytest.FixtureRequest, served_fake: Served) -> AsyncIterator[Wire]:
    """Each wire to ``served_fake``."""
    async with connect(request.param, served_fake) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def gate(fake: FakeBackend) -> AsyncIterator[Gate]:
    """Hold every run of the fake; opened at the end."""
    fake.before_run = gate = Gate()
    yield gate
    gate.open()


def ask(
    wire: Wire, served: Served, rows: int, timeout_s: float | None = None
) -> asyncio.Task[Answer]:
    """Send a request of ``rows`` rows, which is also its seed."""
    request = random_request(served.engine.spec(""), rows, seed=rows)
    body = encode(wire, request, served)
    return asyncio.create_task(_send(wire, body, timeout_s))


async def _send(wire: Wire, body: bytes, timeout_s: float | None) -> Answer:
    return await wire.send(body, timeout_s=timeout_s)


def rows_run(fake: FakeBackend) -> list[int]:
    """Rows of each request that reached the backend; each test's requests differ in rows."""
    return [request.rows for batch in fake.batches for request in batch.requests]


async def test_a_client_that_leaves_while_queued_never_reaches_the_backend(
    served_fake: Served, fake_wire: Wire, fake: FakeBackend, gate: Gate
) -> None:
    running = ask(fake_wire, served_fake, rows=1)
    await gate.began()
    recorder = served_fake.recorder
    leaver, neighbour = ask(fake_wire, served_fake, 2), ask(fake_wire, served_fake, 3)
    await recorder.until(lambda: recorder.queued_rows == 5)
    leaver.cancel()
    await recorder.until(lambda: any(a.code is Code.CANCELLED for a in recorder.answers))
    gate.open()
    assert not (await running).codes
    assert not (await neighbour).codes
    assert rows_run(fake) == [1, 3]


async def test_a_client_that_leaves_while_running_does_not_disturb_its_neighbours(
    served_fake: Served, fake_wire: Wire, fake: FakeBackend, gate: Gate
) -> None:
    first = ask(fake_wire, served_fake, rows=1)
    run = await gate.began()
    recorder = served_fake.recorder
    leaver, neighbour = ask(fake_wire, served_fake, 2), ask(fake_wire, served_fake, 3)
    await recorder.until(lambda: recorder.queued_rows == 5)
    run.finish()
    shared = await gate.began()
    assert sorted(request.rows for request in shared.batch.requests) == [2, 3]
    leaver.cancel()
    await recorder.until(lambda: any(a.code is Code.CANCELLED for a in recorder.answers))
    gate.open()
    for answer in await asyncio.gather(first, neighbour):
        assert not answer.codes


async def test_a_deadline_that_passes_in_the_queue_means_the_request_never_runs(
    served_fake: Served, fake_wire: Wire, fake: FakeBackend, gate: Gate
) -> None:
    running = ask(fake_wire, served_fake, rows=1)
    await gate.began()
    late = await ask(fake_wire, served_fake, rows=2, timeout_s=0.05)
    assert late.codes == {Code.DEADLINE_EXCEEDED}
    recorder = served_fake.recorder
    await recorder.until(lambda: recorder.queued_rows == 0 and bool(recorder.answers))
    gate.open()
    assert not (await running).codes
    assert rows_run(fake) == [1]


async def test_a_full_queue_refuses_at_once_and_names_its_limit(
    served_fake: Served, fake_wire: Wire, fake: FakeBackend, gate: Gate
) -> None:
    served, recorder = served_fake, served_fake.recorder
    await served.engine.swap(fake, replace(OPTIONS, max_queue_rows=64))
    running = ask(fake_wire, served, rows=1)
    await gate.began()
    waiting = ask(fake_wire, served, rows=60)
    await recorder.until(lambda: recorder.queued_rows == 60)
    refused = await ask(fake_wire, served, rows=5)
    assert Code.OVERLOADED in refused.codes
    assert "max_queue_rows" in refused.detail
    assert "64" in refused.detail
    gate.open()
    for answer in await asyncio.gather(running, waiting):
        assert not answer.codes


async def test_a_backend_failure_is_internal_and_keeps_its_secrets(
    served_fake: Served, fake_wire: Wire, fake: FakeBackend
) -> None:
    def fail(batch: Batch) -> None:
        raise RuntimeError("secret path")

    healthy, fake.before_run = fake.before_run, fail
    answer = await ask(fake_wire, served_fake, rows=1)
    assert answer.codes == {Code.INTERNAL}
    assert "secret" not in answer.detail
    fake.before_run = healthy
    assert not (await ask(fake_wire, served_fake, rows=1)).codes


async def test_every_code_of_the_core_reaches_the_client_as_itself(
    served_fake: Served, fake_wire: Wire, fake: FakeBackend
) -> None:
    answers = served_fake.recorder.answers
    for number, code in enumerate(Code, 1):
        fake.before_run = partial(_raise, code)
        answer = await ask(fake_wire, served_fake, rows=1)
        assert code in answer.codes
        assert answer.detail == "because"
        await served_fake.recorder.until(partial(_are, answers, number))
        assert answers[-1].code is code


def _are(answers: list[Answered], number: int) -> bool:
    return len(answers) == number


def _raise(code: Code, batch: Batch) -> None:
    del batch
    raise ServingError(code, "because")


async def test_draining_still_serves_and_then_closing_refuses(
    fake: FakeBackend, certificates: Path, front_ends: MakeFrontEnds
) -> None:
    running = serving(fake, certificates, OPTIONS, front_ends=front_ends())
    async with running as served, AsyncExitStack() as stack:
        connections = [connect(name, served) for name in EVERY_WIRE]
        wires = [await stack.enter_async_context(each) for each in connections]
        served.engine.drain()
        assert not served.engine.ready
        assert [(await ask(wire, served, rows=1)).codes for wire in wires] == [set()] * len(wires)
        await served.engine.close(grace_s=1.0)
        refused = [(await ask(wire, served, rows=1)).codes for wire in wires]
        assert refused == [{Code.UNAVAILABLE}] * len(wires)


async def test_one_guilty_request_does_not_fail_its_batch(
    served_fake: Served, fake_wire: Wire, fake: FakeBackend, gate: Gate
) -> None:
    running = ask(fake_wire, served_fake, rows=1)
    run = await gate.began()
    asked = [ask(fake_wire, served_fake, rows) for rows in (2, 3, 4)]
    await served_fake.recorder.until(lambda: served_fake.recorder.queued_rows == 9)

    def fail_three(batch: Batch) -> None:
        if any(request.rows == 3 for request in batch.requests):
            raise ValueError("three rows")

    fake.before_run = fail_three
    run.finish()
    two, three, four = await asyncio.gather(*asked)
    assert not (await running).codes
    assert not two.codes
    assert three.codes == {Code.INTERNAL}
    assert not four.codes


@pytest.mark.parametrize("extra_bytes", [1, 2**20])
async def test_a_body_over_the_limit_is_refused_and_the_next_request_served(
    served_fake: Served, fake_wire: Wire, extra_bytes: int
) -> None:
    answer = await fake_wire.send(bytes(64 * 2**20 + extra_bytes))
    assert Code.PAYLOAD_TOO_LARGE in answer.codes
    assert str(64 * 2**20) in answer.detail
    assert not (await ask(fake_wire, served_fake, rows=1)).codes
