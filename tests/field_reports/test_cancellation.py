"""A client that leaves, or whose time is up, costs nothing more and hurts nobody else."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from backends.fake import FakeBackend
from scheduler.asking import Asked, AskedByTask, Asker
from scheduler.errors import Code
from scheduler.types import InferRequest, InferResponse
from tests.contract.conftest import encode
from tests.field_reports.asking import ask, cancelled, queued, request_of, right, rows_run
from tests.field_reports.conftest import TRANSPORTS
from tests.fixtures.gates import Gate, Recorder, make_request, serving
from tests.fixtures.grpc_calls import grpc_serving
from tests.fixtures.manual_clock import on_manual_clock, pass_time, settle
from tests.fixtures.raw_http import post, raw
from tests.fixtures.serving import Served
from tests.fixtures.wires import Wire, connect

pytestmark = pytest.mark.timeout(30)


@on_manual_clock
async def test_of_20_waiting_requests_the_10_cancelled_never_run_and_are_counted_so() -> None:
    """Field report 19: Triton #6920 #4618 #7532 #8030."""
    recorder = Recorder()
    async with serving(observer=recorder) as server:
        run = await server.occupy()
        asked = [await server.asked(make_request(1, seed)) for seed in range(20)]
        for answer in asked[::2]:
            answer.cancel()
        await settle()
        server.gate.open()
        run.finish()
        await asyncio.gather(*asked[1::2])
        assert server.ran == [["request-99"], [f"request-{seed}" for seed in range(1, 20, 2)]]
        assert recorder.drops == ["cancelled"] * 10


@on_manual_clock
async def test_of_20_waiting_requests_the_10_whose_time_is_up_never_run_and_are_counted_so() -> (
    None
):
    """Field report 19: Triton #6920 #7532."""
    recorder = Recorder()
    async with serving(observer=recorder) as server:
        run = await server.occupy()
        asked = [
            await server.asked(make_request(1, seed, timeout_s=1.0 if seed % 2 else 9.0))
            for seed in range(20)
        ]
        await pass_time(1.0)
        server.gate.open()
        run.finish()
        await asyncio.gather(*asked, return_exceptions=True)
        assert server.ran == [["request-99"], [f"request-{seed}" for seed in range(0, 20, 2)]]
        assert recorder.drops == ["deadline"] * 10


async def test_clients_that_leave_while_they_wait_are_never_computed(
    served_fake: Served, wire: Wire, fake: FakeBackend, gate: Gate
) -> None:
    """Field reports 19, 27, 28: Triton #6920 #8030, uvicorn and Starlette, LitServe #165 #48."""
    first = ask(wire, served_fake, rows=1)
    await gate.began()
    asked = [ask(wire, served_fake, rows) for rows in range(2, 10)]
    await queued(served_fake, rows=sum(range(2, 10)))
    for answer in asked[::2]:
        answer.cancel()
    await cancelled(served_fake, count=4)
    gate.open()
    await first
    for rows, answer in list(enumerate(asked, start=2))[1::2]:
        assert right(await answer, fake, request_of(served_fake, rows))
    assert sorted(rows_run(fake)) == [1, 3, 5, 7, 9]


@pytest.mark.parametrize("leave", ["close", "abort"])
async def test_a_closed_connection_is_a_cancel(
    served_fake: Served, fake: FakeBackend, gate: Gate, leave: str
) -> None:
    """Field report 27: uvicorn and Starlette let the handler run on unnoticed."""
    async with connect("http-json", served_fake) as wire:
        first = ask(wire, served_fake, rows=1)
        await gate.began()
        body = encode(wire, request_of(served_fake, 5), served_fake)
        async with raw(served_fake.urls["http"]) as leaver:
            await leaver.send(post(body, "content-type: application/json"))
            await queued(served_fake, rows=5)
            if leave == "abort":
                leaver.writer.transport.abort()
        await cancelled(served_fake, count=1)
        await queued(served_fake, rows=0)
        gate.open()
        assert right(await first, fake, request_of(served_fake, 1))
    assert rows_run(fake) == [1]


async def given_up(request: InferRequest) -> InferResponse:
    """Wait for a future that is cancelled from the server's side."""
    future: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.cancel)
    return await future


def asked_of_a_task(request: InferRequest, asker: Asker) -> Asked:
    """Have a task do so."""
    return AskedByTask(given_up(request), asker, request.id)


@pytest.mark.parametrize("name", TRANSPORTS)
async def test_a_request_cancelled_by_the_server_itself_still_gets_a_status(
    name: str, served_fake: Served, fake: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Field report 20: grpc #29248, a handler's CancelledError leaves its client hanging."""
    async with connect(name, served_fake) as wire:
        with monkeypatch.context() as patch:
            patch.setattr(served_fake.engine, "infer", given_up)
            patch.setattr(served_fake.engine, "ask", asked_of_a_task)
            async with asyncio.timeout(60):
                answer = await ask(wire, served_fake, rows=2)
        assert answer.codes in ({Code.CANCELLED}, {Code.INTERNAL})
        following = await ask(wire, served_fake, rows=3)
        assert right(following, fake, request_of(served_fake, 3))


async def test_one_of_eight_that_leaves_while_computed_harms_neither_the_others_nor_the_next(
    served_fake: Served, wire: Wire, fake: FakeBackend, gate: Gate
) -> None:
    """Field report 21: Ray #41057 #50046, MLServer's source."""
    first = ask(wire, served_fake, rows=1)
    run = await gate.began()
    asked = [ask(wire, served_fake, rows) for rows in range(2, 10)]
    await queued(served_fake, rows=sum(range(2, 10)))
    run.finish()
    shared = await gate.began()
    assert len(shared.batch.requests) == 8
    asked[2].cancel()
    await cancelled(served_fake, count=1)
    gate.open()
    assert right(await first, fake, request_of(served_fake, 1))
    for rows, answer in enumerate(asked, start=2):
        if rows != 4:
            assert right(await answer, fake, request_of(served_fake, rows))
    following = await ask(wire, served_fake, rows=10)
    assert right(following, fake, request_of(served_fake, 10))


async def test_a_cancelled_grpc_call_is_known_by_the_cancel_of_its_handler() -> None:
    """Field report 22: grpc #36193, ``context.cancelled()`` is False in a done callback."""
    async with grpc_serving() as served:
        first = served.client.predict()
        run = await served.serving.gate.began()
        leaver = served.client.predict()
        while served.observed.queued_rows[-1:] != [2]:
            served.observed.changed.clear()
            await served.observed.changed.wait()
        leaver.cancel()
        assert (await served.observed.answer()).code is Code.CANCELLED
        assert served.observed.drops == ["cancelled"]
        run.finish()
        await first


async def test_a_thousand_deadlines_missed_leave_the_lane_alive_for_the_next_request(
    served_fake: Served, fake: FakeBackend, gate: Gate
) -> None:
    """Field report 26: TorchServe #1815 #2357 #2814."""
    async with AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(connect(name, served_fake)) for name in TRANSPORTS]
        first = ask(wires[0], served_fake, rows=1)
        await gate.began()
        hurried = [
            ask(wire, served_fake, rows=2, timeout_s=0.001)
            for wire, count in zip(wires, (500, 360, 100, 40), strict=True)
            for _ in range(count)
        ]
        for answer in await asyncio.gather(*hurried):
            assert answer.codes == {Code.DEADLINE_EXCEEDED}
        gate.open()
        assert right(await first, fake, request_of(served_fake, 1))
        for wire in wires:
            following = await ask(wire, served_fake, rows=3)
            assert right(following, fake, request_of(served_fake, 3))
        assert 2 not in rows_run(fake)
