"""Requests that share a batch share nothing else: failures, rows, outputs and names are each's."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.errors import Code
from scheduler.types import Batch
from tests.contract.conftest import encode
from tests.field_reports.asking import ask, code_of, queued, request_of, right
from tests.fixtures.gates import Gate, Outputs, TwistedBackend, make_request, serving
from tests.fixtures.manual_clock import on_manual_clock
from tests.fixtures.requests import VALUES, random_request
from tests.fixtures.serving import Served
from tests.fixtures.wires import EVERY_WIRE, Wire, connect

pytestmark = pytest.mark.timeout(30)


async def test_one_request_with_a_bad_id_is_refused_and_seven_others_get_their_scores(
    served_fake: Served, wire: Wire, fake: FakeBackend, gate: Gate
) -> None:
    """Field report 1: LitServe #340, TorchServe #2853 #2158, FBGEMM's fatal bounds mode."""
    first = ask(wire, served_fake, rows=1)
    await gate.began()
    asked = [ask(wire, served_fake, rows) for rows in range(2, 9)]
    bad = request_of(served_fake, 9)
    bad.inputs[VALUES][0] = -5
    refused = await wire.send(encode(wire, bad, served_fake))
    assert refused.codes == {Code.INVALID_REQUEST}
    assert "-5" in refused.detail
    await queued(served_fake, rows=sum(range(2, 9)))
    gate.open()
    for rows, answer in enumerate(await asyncio.gather(first, *asked), start=1):
        assert right(answer, fake, request_of(served_fake, rows))


async def test_one_request_that_breaks_the_backend_fails_alone_in_its_batch_of_eight(
    served_fake: Served, wire: Wire, fake: FakeBackend, gate: Gate
) -> None:
    """Field report 1: LitServe #340, TorchServe #2853 #2158."""
    first = ask(wire, served_fake, rows=1)
    run = await gate.began()
    asked = {rows: ask(wire, served_fake, rows) for rows in range(2, 10)}
    await queued(served_fake, rows=sum(asked))

    def fail_five(batch: Batch) -> None:
        if any(request.rows == 5 for request in batch.requests):
            raise ValueError("a marker")

    fake.before_run = fail_five
    run.finish()
    assert right(await first, fake, request_of(served_fake, 1))
    for rows, answer in asked.items():
        if rows == 5:
            assert (await answer).codes == {Code.INTERNAL}
        else:
            assert right(await answer, fake, request_of(served_fake, rows))


async def test_clients_of_different_batch_sizes_in_one_batch_each_get_all_their_rows(
    served_fake: Served, wire: Wire, fake: FakeBackend, gate: Gate
) -> None:
    """Field report 2: MLServer #1306 #1911."""
    first = ask(wire, served_fake, rows=10)
    run = await gate.began()
    sizes = [1, 17, 3, 8, 2, 30]
    asked = [ask(wire, served_fake, rows) for rows in sizes]
    await queued(served_fake, rows=sum(sizes))
    run.finish()
    shared = await gate.began()
    assert shared.batch.rows == sum(sizes)
    gate.open()
    for rows, answer in zip([10, *sizes], await asyncio.gather(first, *asked), strict=True):
        assert right(answer, fake, request_of(served_fake, rows))


async def test_64_clients_at_once_over_all_wires_each_get_the_scores_of_their_own_payload(
    served_fake: Served, fake: FakeBackend
) -> None:
    """Field report 3: Triton #5733 #3211."""

    async with AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(connect(name, served_fake)) for name in EVERY_WIRE]

        async def client(number: int) -> None:
            wire = wires[number % len(wires)]
            for turn in range(4):
                request = random_request(fake.spec, 1 + number % 7, seed=1000 * turn + number)
                answer = await wire.send(encode(wire, request, served_fake))
                assert right(answer, fake, request), number

        async with asyncio.TaskGroup() as group:
            for number in range(64):
                group.create_task(client(number))
    assert max(len(batch.requests) for batch in fake.batches) > 1


@on_manual_clock
async def test_a_model_that_answers_too_few_rows_fails_those_requests_and_the_log_says_how_many(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Field report 5: TorchServe, "number of batch response mismatched"."""
    short = True

    def drop_a_row(batch: Batch, outputs: Outputs) -> Outputs:
        return {"default": outputs["default"][:-1]} if short else outputs

    async with serving(TwistedBackend(FakeOptions(), drop_a_row)) as server:
        server.gate.open()
        asked = [server.ask(make_request(rows, rows)) for rows in (4, 5)]
        assert [await code_of(answer) for answer in asked] == [Code.INTERNAL] * 2
        assert "expected float32 with 4 rows, got float32 with shape (3,)" in caplog.text
        assert server.engine.ready
        short = False
        request = make_request(6, 6)
        assert await server.right(server.ask(request), request)
