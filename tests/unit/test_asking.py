"""Who asks for an answer is told it once, unless they cancel; what they do with it is theirs."""

import asyncio
import gc

import pytest

from scheduler.asking import Asked, AskedByTask, Asker, Awaiting
from scheduler.errors import Code, ServingError
from scheduler.types import InferResponse, Timing
from tests.fixtures.gates import make_request, serving
from tests.fixtures.manual_clock import on_manual_clock, settle

pytestmark = pytest.mark.timeout(60)


class Told(Asker):
    """Remember what is told, then raise ``fault`` if there is one."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.answers: list[InferResponse | ServingError] = []
        self._fault = fault

    def answered(self, answer: InferResponse | ServingError) -> None:
        self.answers.append(answer)
        if self._fault is not None:
            raise self._fault


@on_manual_clock
async def test_an_asker_that_fails_harms_neither_the_model_nor_its_neighbours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as server:
        busy = await server.occupy()
        faulty = Told(ZeroDivisionError())
        server.engine.ask(make_request(1, seed=1), faulty)
        request = make_request(1, seed=2)
        neighbour = await server.asked(request)
        server.gate.open()
        busy.finish()
        assert await server.right(neighbour, request)
        assert len(faulty.answers) == 1
        assert server.engine.ready
        assert [record.name for record in caplog.records] == ["scheduler.replies"]


@on_manual_clock
async def test_what_is_cancelled_is_neither_computed_nor_told() -> None:
    async with serving() as server:
        busy = await server.occupy()
        told = Told()
        asked = server.engine.ask(make_request(1, seed=1), told)
        assert asked.version == "1"
        asked.cancel()
        server.gate.open()
        busy.finish()
        await settle()
        assert (server.ran, told.answers) == ([["request-99"]], [])


@on_manual_clock
async def test_no_rows_are_answered_before_the_asking_is_over() -> None:
    async with serving() as server:
        told = Told()
        asked = server.engine.ask(make_request(0), told)
        (answer,) = told.answers
        assert isinstance(answer, InferResponse)
        asked.cancel()  # as if nothing had been asked for
        assert len(told.answers) == 1


@on_manual_clock
async def test_who_awaits_and_was_told_is_told_no_more() -> None:
    asker = Awaiting()
    answer = InferResponse("fake", "1", {}, Timing(0.0, 0.0, 0))
    asker.answered(answer)
    asker.answered(ServingError(Code.INTERNAL, "too late"))
    assert asker.gone
    assert await asker.answer(Asked()) is answer
    asker.answered(answer)
    assert asker.gone


async def raising(error: BaseException) -> InferResponse:
    """Raise ``error``."""
    raise error


@pytest.mark.parametrize(
    ("error", "code", "detail"),
    [
        (ServingError(Code.OVERLOADED, "full"), Code.OVERLOADED, "full"),
        (ZeroDivisionError("a secret"), Code.INTERNAL, "internal error; request id mine"),
        (asyncio.CancelledError(), Code.CANCELLED, "the server cancelled the request"),
    ],
)
@on_manual_clock
async def test_what_a_task_raises_is_its_answer(
    error: BaseException, code: Code, detail: str
) -> None:
    told = Told()
    AskedByTask(raising(error), told, "mine")
    await settle()
    (answer,) = told.answers
    assert isinstance(answer, ServingError)
    assert (answer.code, answer.detail) == (code, detail)


@on_manual_clock
async def test_a_task_that_is_cancelled_tells_nothing() -> None:
    held: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()

    async def work() -> InferResponse:
        return await held

    told = Told()
    asked = AskedByTask(work(), told, "mine")
    await settle()
    asked.cancel()
    await settle()
    assert held.cancelled()
    assert told.answers == []


@on_manual_clock
async def test_a_task_that_is_cancelled_before_it_has_begun_leaves_nothing_behind() -> None:
    told = Told()
    asked = AskedByTask(raising(ZeroDivisionError()), told, "mine")
    asked.cancel()
    del asked
    await settle()  # a coroutine that nobody awaited would be a warning, which is an error here
    gc.collect()
    assert told.answers == []
