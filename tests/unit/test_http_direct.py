"""Requests over HTTP/1.1 that arrive whole: answered without a task, whatever becomes of them."""

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from scheduler.asking import Asked, Asker
from scheduler.errors import Code, ServingError
from scheduler.observer import Answered
from scheduler.replies import Owed
from scheduler.types import InferRequest, InferResponse, Timing
from scheduler.waiting import Waiting
from tests.fixtures.raw_http import RawConnection, post, raw
from tests.fixtures.stub_engine import SPEC, StubEngine
from tests.fixtures.stub_serving import http_served, json_body, problem
from transports.http.call import Call
from transports.http.exchange import Exchange
from transports.http.server import HttpOptions, HttpTransport

# 16 MB of answer, more than the kernel takes for a client that does not read.
MANY_ROWS = 4_000_000


class Held:
    """One request that has been asked for; the test says when it is answered, and with what."""

    def __init__(self, request: InferRequest, asker: Asker) -> None:
        self.request = request
        self.asker = asker
        self.cancelled = asyncio.Event()

    def asked(self) -> Asked:
        """Return what cancels it. No class of a test's own could be: Asked may be compiled."""
        waiting = Waiting(self.request, 0.0)
        return Owed(waiting, self.asker, SPEC.version, None, lambda _: self.cancelled.set())

    def scores(self, rows: int | None = None) -> InferResponse:
        """Return an answer: the request's first dense feature."""
        scores = np.ascontiguousarray(self.request.inputs["float_features"][:, 0])
        outputs = {"default": scores if rows is None else np.resize(scores, rows)}
        return InferResponse(SPEC.name, SPEC.version, outputs, Timing(0.0, 0.0, 1))

    def answer(self) -> None:
        """Tell whoever asked."""
        self.asker.answered(self.scores())


class HeldEngine(StubEngine):
    """Holds every request, or does ``at_once`` with it within ``ask``."""

    def __init__(self) -> None:
        super().__init__()
        self.held: asyncio.Queue[Held] = asyncio.Queue()
        self.at_once: Callable[[Held], None] | None = None

    def ask(self, request: InferRequest, asker: Asker) -> Asked:
        """Hold it."""
        held = Held(request, asker)
        if self.at_once is not None:
            self.at_once(held)
        else:
            self.held.put_nowait(held)
        return held.asked()


@pytest.fixture
def engine() -> HeldEngine:
    return HeldEngine()


@pytest.fixture
async def connection(engine: HeldEngine) -> AsyncIterator[RawConnection]:
    async with http_served(engine) as url, raw(url) as opened:
        yield opened


@asynccontextmanager
async def noting_tasks() -> AsyncIterator[asyncio.Queue[str]]:
    """Yield what the tasks that are made from here on are to do."""
    loop, made = asyncio.get_running_loop(), asyncio.Queue[str]()

    def factory(
        loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Task[Any]:
        made.put_nowait(repr(work))
        return asyncio.Task(work, loop=loop, **options)

    loop.set_task_factory(factory)  # type: ignore[arg-type] # a factory may take futures, too
    try:
        yield made
    finally:
        loop.set_task_factory(None)


def answered_at_once(held: Held) -> None:
    held.answer()


async def test_a_whole_request_makes_no_task(engine: HeldEngine, connection: RawConnection) -> None:
    await connection.send(post(json_body([0.5])))  # and have the connection's own tasks made
    (await engine.held.get()).answer()
    await connection.answer()
    async with noting_tasks() as made:
        await connection.send(post(json_body([0.25])))
        (await engine.held.get()).answer()
        assert b"0.25" in (await connection.answer()).body
        await connection.send(post(b"{"))
        problem((await connection.answer()).body, 400)
    assert made.empty(), made.get_nowait()


async def test_a_body_that_comes_later_is_waited_for_in_a_task(
    engine: HeldEngine, connection: RawConnection
) -> None:
    engine.at_once = answered_at_once
    content = post(json_body([0.5]))
    await connection.send(post(json_body([0.5])))
    await connection.answer()
    async with noting_tasks() as made:
        await connection.send(content[:-1])
        await made.get()
        await connection.send(content[-1:])
        assert (await connection.answer()).status == 200
    assert made.empty(), made.get_nowait()


@pytest.mark.parametrize("end", ["close", "fin"])
async def test_a_client_that_leaves_cancels_its_request(
    engine: HeldEngine, connection: RawConnection, end: str
) -> None:
    await connection.send(post(json_body([0.5]), "x-request-id: left"))
    held = await engine.held.get()
    if end == "close":
        connection.writer.close()
    else:
        connection.writer.write_eof()
    await held.cancelled.wait()
    (record,) = await engine.watcher.wait_for(1)
    assert (record.code, record.request_id, record.version) == (Code.CANCELLED, "left", "1")
    assert held.asker.gone
    held.answer()  # to nobody
    assert len(engine.watcher.records) == 1


async def test_an_answer_may_be_told_within_the_asking(
    engine: HeldEngine, connection: RawConnection
) -> None:
    engine.at_once = answered_at_once
    for score in (0.25, 0.5):
        await connection.send(post(json_body([score])))
        assert str(score).encode() in (await connection.answer()).body
    assert [record.code for record in engine.watcher.records] == [None, None]


async def test_an_engine_that_refuses_is_answered_with_its_reason(
    engine: HeldEngine, connection: RawConnection
) -> None:
    def refuse(held: Held) -> None:
        raise ServingError(Code.OVERLOADED, "queue full")

    def refuse_later(held: Held) -> None:
        held.asker.answered(ServingError(Code.DEADLINE_EXCEEDED, "too late"))

    for at_once, status in ((refuse, 429), (refuse_later, 504)):
        engine.at_once = at_once
        await connection.send(post(json_body([0.5])))
        problem((await connection.answer()).body, status)
    codes = [record.code for record in engine.watcher.records]
    assert codes == [Code.OVERLOADED, Code.DEADLINE_EXCEEDED]


def break_asking(held: Held) -> None:
    raise ZeroDivisionError("a secret")


def break_encoding(held: Held) -> None:
    held.asker.answered(InferResponse(SPEC.name, SPEC.version, {"other": None}, Timing(0, 0, 1)))  # type: ignore[dict-item]


def break_the_engines_task(held: Held) -> None:
    held.asker.failed(ZeroDivisionError("a secret"), held.request.id)


@pytest.mark.parametrize("broken", [break_asking, break_encoding, break_the_engines_task])
async def test_a_bug_of_ours_ends_its_request_alone(
    engine: HeldEngine,
    connection: RawConnection,
    broken: Callable[[Held], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    await connection.send(post(json_body([0.5])), post(json_body([0.25])))
    first = await engine.held.get()
    engine.at_once = broken
    first.answer()
    assert (await connection.answer()).status == 200
    answer = await connection.answer()
    detail = problem(answer.body, 500)["detail"]
    assert detail == "internal error; the server's log has the cause"
    assert await connection.closed()
    assert "a request failed for a reason nobody foresaw" in caplog.text
    codes = [record.code for record in await engine.watcher.wait_for(2)]
    assert codes == [None, Code.INTERNAL]


async def test_a_bug_after_the_answer_leaves_the_answer(
    engine: HeldEngine, connection: RawConnection
) -> None:
    def answer_and_break(held: Held) -> None:
        held.answer()
        raise ZeroDivisionError("a secret")

    for at_once in (answer_and_break, answered_at_once):
        engine.at_once = at_once
        await connection.send(post(json_body([0.5])))
        assert (await connection.answer()).status == 200
    assert [record.code for record in engine.watcher.records] == [None, None]


async def test_a_bug_after_an_answer_that_waits_is_the_answer(
    engine: HeldEngine, connection: RawConnection
) -> None:
    def answer_and_break(held: Held) -> None:
        held.asker.answered(held.scores(10_000))  # so large that it is packed, in a task
        raise ZeroDivisionError("a secret")

    engine.at_once = answer_and_break
    await connection.send(post(json_body([0.5]), "accept-encoding: gzip"))
    assert (await connection.answer()).status == 500
    assert await connection.closed()
    assert len(engine.watcher.records) == 1


async def test_an_observer_that_breaks_takes_no_connection_with_it(
    engine: HeldEngine, connection: RawConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(record: Answered) -> None:
        raise ZeroDivisionError("a secret")

    engine.at_once = answered_at_once
    monkeypatch.setattr(engine.watcher, "answered", broken)
    for _ in range(2):
        await connection.send(post(json_body([0.5])))
        assert (await connection.answer()).status == 200


async def test_a_request_waits_for_its_turn_and_answers_keep_their_order(
    engine: HeldEngine, connection: RawConnection
) -> None:
    await connection.send(*(post(json_body([score])) for score in (1.0, 2.0, 3.0)))
    for score in (b"1.0", b"2.0", b"3.0"):
        held = await engine.held.get()
        assert engine.held.empty()
        held.answer()
        assert score in (await connection.answer()).body


async def test_many_requests_that_are_refused_at_once_are_all_answered_in_order(
    engine: HeldEngine, connection: RawConnection
) -> None:
    engine.at_once = answered_at_once
    await connection.send(
        *(post(b"{", f"x-request-id: {number}") for number in range(500)), post(json_body([0.5]))
    )
    for number in range(500):
        assert (await connection.answer()).headers["x-request-id"] == str(number)
    assert (await connection.answer()).status == 200


async def leave_two_unread(engine: HeldEngine, connection: RawConnection) -> None:
    """Have two requests answered, the first with more than a client takes that does not read."""
    connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await connection.send(post(json_body([0.5])), post(json_body([0.25])))
    first = await engine.held.get()
    first.asker.answered(first.scores(MANY_ROWS))
    (await engine.held.get()).answer()
    assert len(engine.watcher.records) == 1  # of the first, which is written as far as we go


async def test_an_answer_waits_for_a_client_that_does_not_read_and_is_in_its_turn(
    engine: HeldEngine, connection: RawConnection
) -> None:
    await leave_two_unread(engine, connection)
    connection.writer.transport.resume_reading()  # type: ignore[attr-defined]
    assert len((await connection.answer()).body) > MANY_ROWS
    assert b"0.25" in (await connection.answer()).body
    assert [record.code for record in await engine.watcher.wait_for(2)] == [None, None]


async def test_a_client_that_leaves_while_its_answer_waits_is_recorded_once(
    engine: HeldEngine, connection: RawConnection
) -> None:
    await leave_two_unread(engine, connection)
    connection.writer.transport.abort()
    assert len(await engine.watcher.wait_for(2)) == 2


async def test_a_stop_answers_the_requests_under_way(engine: HeldEngine) -> None:
    transport = HttpTransport(HttpOptions(port=0))
    (url,) = await transport.start(engine)
    async with raw(url) as connection:
        await connection.send(post(json_body([0.5])))
        held = await engine.held.get()
        stopping = asyncio.create_task(transport.stop(0.0))
        await held.cancelled.wait()
        answer = await connection.answer()
        problem(answer.body, 503)
        assert answer.headers["connection"] == "close"
        assert await connection.closed()
        await stopping
    assert [record.code for record in engine.watcher.records] == [Code.UNAVAILABLE]


async def test_what_is_refused_for_lack_of_memory_gives_none_back_twice(
    engine: HeldEngine,
) -> None:
    body = json_body([0.5])
    limits = {"max_request_bytes": len(body), "max_buffered_bytes": len(body)}
    async with http_served(engine, **limits) as url, raw(url) as one, raw(url) as other:
        await one.send(post(body))
        held = await engine.held.get()
        await other.send(post(body))
        problem((await other.answer()).body, 429)
        held.answer()
        await one.answer()
        for _ in range(2):
            await other.send(post(body))
            (await engine.held.get()).answer()
            assert (await other.answer()).status == 200


@pytest.mark.parametrize("ending", ["answered", "refused", "unforeseen", "left"])
async def test_a_request_that_has_ended_is_left_in_no_cycle(
    engine: HeldEngine, ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)  # pytest keeps what is logged
    async with http_served(engine) as url:
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for _ in range(3):
                await _ask_and_end(engine, url, ending)
            gc.collect()
            left = [each for each in gc.garbage if isinstance(each, Call | Exchange | Asked)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
    assert left == []


async def _ask_and_end(engine: HeldEngine, url: str, ending: str) -> None:
    before = len(engine.watcher.records)
    async with raw(url) as connection:
        engine.at_once = break_asking if ending == "unforeseen" else None
        await connection.send(post(json_body([0.5])))
        if ending != "unforeseen":
            held = await engine.held.get()
        if ending == "answered":
            held.answer()
        elif ending == "refused":
            held.asker.answered(ServingError(Code.OVERLOADED, "queue full"))
        elif ending == "left":
            connection.writer.close()
        if ending != "left":
            await connection.answer()
    await engine.watcher.wait_for(before + 1)


@pytest.mark.parametrize(
    ("more", "kept"),
    [
        (b"", True),
        (b"content-length: 0\r\n", True),
        (b"content-length: 2\r\n", False),
        (b"transfer-encoding: chunked\r\n", False),
    ],
)
async def test_a_refusal_keeps_the_connection_of_a_request_without_a_body(
    connection: RawConnection, more: bytes, kept: bool
) -> None:
    await connection.send(b"GET /v1/predict HTTP/1.1\r\nhost: x\r\n", more, b"\r\n")
    answer = await connection.answer()
    problem(answer.body, 405)
    assert ("connection" not in answer.headers) is kept
    if kept:
        await connection.send(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await connection.answer()).status == 200
