"""Pieces of one request that lanes begin in another order than they were cut in."""

import threading

import pytest

from scheduler.options import SchedulerOptions
from scheduler.types import Batch
from tests.fixtures.gates import Gate, Recorder, make_request, serving
from tests.fixtures.manual_clock import on_manual_clock, settle, turn_until
from tests.unit.test_scheduler_ahead import TwoStep

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("cancelled", [True, False])
@on_manual_clock
async def test_a_request_whose_later_piece_ran_first_is_not_dropped_when_it_is_cancelled(
    *, cancelled: bool
) -> None:
    backend, recorder, gathering = TwoStep(lanes=2), Recorder(), Gate()

    def hold_ahead(batch: Batch) -> None:
        if threading.current_thread().name.endswith("gather"):
            gathering(batch)

    async with serving(backend, SchedulerOptions(watchdog_s=0.0), recorder) as server:
        busy = [await server.occupy() for _ in range(2)]
        backend.before_prepare = hold_ahead
        request = make_request(7, 1)
        task = await server.asked(request)
        first = await gathering.began()  # rows 0 to 4 are being gathered ahead, for long
        for run in busy:
            run.finish()
        later = await server.gate.began()  # and a free lane begins rows 4 to 7
        if cancelled:
            task.cancel()
            await settle()
        first.finish()
        if cancelled:
            later.finish()
            await turn_until(lambda: len(recorder.runs) == 3)
            await settle()
            assert [batch.rows for batch in list(backend.batches)[2:]] == [3]
        else:
            server.gate.open()
            assert await server.right(task, request)
        assert recorder.drops == []
