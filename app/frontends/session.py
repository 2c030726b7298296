"""The engine's side of one front end: its messages become tasks, and those answers."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any

import orjson

from app.frontends.channel import Channel
from app.frontends.messages import (
    Sent,
    decode_request,
    encode_answer,
    encode_numbers,
    encode_refusal,
    read,
)
from app.frontends.records import Keyed, decode_records
from app.frontends.slots import ReadArena
from app.frontends.state import encode_state
from app.frontends.texts import looked_up
from app.frontends.wire import Frame, Kind, WireError
from scheduler.answers import not_within
from scheduler.control import ModelControl
from scheduler.engine import Engine
from scheduler.errors import Code, ServingError
from scheduler.types import InferRequest

logger = logging.getLogger(__name__)

# So long a front end waits at most to hear that a slot is free again.
_RELEASE_PERIOD_S = 0.002


class Session:
    """Answer what comes by ``channel`` until it is lost, and then drop what is under way.

    ``heard`` takes what is no business of the engine's: whether
    the front end listens.
    """

    def __init__(
        self,
        engine: Engine,
        arena: ReadArena,
        heard: Callable[[Frame], None],
    ) -> None:
        self._engine = engine
        self._arena = arena
        self._heard = heard
        self._channel: Channel | None = None
        self._tasks: dict[int, asyncio.Task[Frame]] = {}
        self._released: deque[int] = deque()
        self._telling = False
        self._told: deque[asyncio.Future[None]] = deque()
        self._loop = asyncio.get_running_loop()
        self._calls: Mapping[str, Callable[..., Awaitable[Any]]] = {
            "scrape": self._scrape,
            "load": self._load,
            "unload": self._unload,
        }
        self._unwatch: Callable[[], None] | None = None

    @property
    def requests(self) -> int:
        """How many requests and calls are under way."""
        return len(self._tasks)

    @property
    def slots(self) -> int:
        """How many of its slots are read."""
        return self._arena.read

    def connect(self, channel: Channel) -> None:
        """Begin; say at once what is served, and whenever that changes."""
        self._channel = channel
        self._unwatch = self._engine.watch(self._tell_state)
        self._tell_state()

    def close(self) -> None:
        """Drop what is under way: nobody waits for it any more."""
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
        for task in self._tasks.values():
            task.cancel()
        while self._told:
            self._one_told()
        self._arena.close()

    async def told(self) -> None:
        """Return once the front end has reported what it had heard by now, or is gone."""
        if self._unwatch is None or self._channel is None or self._channel.waiting_bytes:
            return
        done = self._loop.create_future()
        self._told.append(done)
        self._say(Frame(Kind.TELL))
        await done

    def received(self, frame: Frame) -> None:
        """Take what the front end says. Raises WireError."""
        if frame.kind is Kind.INFER:
            sent = decode_request(frame.payload)
            request = self._request(frame.number, sent)
            self._begin(frame.number, self._infer(frame.number, request, sent))
        elif frame.kind is Kind.CANCEL:
            task = self._tasks.get(frame.number)
            if task is not None:
                task.cancel()
        elif frame.kind is Kind.RECORDS:
            self._report(frame.payload)
        elif frame.kind is Kind.CALL:
            self._begin(frame.number, self._call(frame.number, frame.payload))
        elif frame.kind is Kind.TOLD:
            self._one_told()
        elif frame.kind is not Kind.BEAT:
            self._heard(frame)

    def _report(self, payload: bytes) -> None:
        for record in decode_records(payload):
            if isinstance(record, Keyed):
                self._engine.observer.keyed(record.key, record.outcome)
            else:
                self._engine.observer.answered(record)

    def _one_told(self) -> None:
        done = self._told.popleft() if self._told else None
        if done is not None and not done.done():
            done.set_result(None)

    def _request(self, number: int, sent: Sent) -> InferRequest:
        """Return the request with its tensors, as long as it has left. Raises WireError."""
        whole = self._arena.look(sent.slot, partial(self._released.append, number))
        self._tell_released_later()
        return sent.request(read(whole, sent.placed), sent.deadline_s - time.monotonic())

    def _begin(self, number: int, work: Coroutine[Any, Any, Frame]) -> None:
        if number in self._tasks:
            work.close()
            raise WireError(f"number {number} is under way already")
        task = self._tasks[number] = self._loop.create_task(work)
        task.add_done_callback(partial(self._done, number))

    def _done(self, number: int, task: asyncio.Task[Frame]) -> None:
        del self._tasks[number]
        if task.cancelled():
            return
        failure = task.exception()
        if failure is None:
            self._say(task.result())
            return
        logger.error("a front end's request failed", exc_info=failure)
        error = ServingError(Code.INTERNAL, "internal error")
        self._say(Frame(Kind.REFUSAL, number, encode_refusal(error)))

    async def _infer(self, number: int, request: InferRequest, sent: Sent) -> Frame:
        """Answer; the client's own timeout is what it is told of, if it is over."""
        timeout_s = sent.timeout_s
        try:
            if request.timeout_s <= 0:
                raise not_within(timeout_s)
            if sent.texts:
                request = looked_up(self._engine, request, sent.texts)
            response = await self._engine.infer(request)
        except ServingError as error:
            if error.detail == not_within(request.timeout_s).detail:
                error.detail = not_within(timeout_s).detail
            payload = encode_refusal(error)
            _let_go(error)
            return Frame(Kind.REFUSAL, number, payload)
        return Frame(Kind.ANSWER, number, encode_answer(response))

    async def _call(self, number: int, payload: bytes) -> Frame:
        try:
            name, *arguments = orjson.loads(payload)
            result = await self._calls[name](*arguments)
        except ServingError as error:
            return Frame(Kind.REFUSAL, number, encode_refusal(error))
        return Frame(Kind.RESULT, number, orjson.dumps(result))

    async def _scrape(self, accept: str) -> tuple[str, str]:
        body, content_type = await self._engine.observer.scraped(accept)
        return body.decode(), content_type

    async def _load(self, model: str) -> None:
        await self._control.load(model)

    async def _unload(self, model: str) -> None:
        await self._control.unload(model)

    @property
    def _control(self) -> ModelControl:
        if self._engine.control is None:
            raise ServingError(Code.UNSUPPORTED, "clients may not load and unload models")
        return self._engine.control

    def _tell_released_later(self) -> None:
        # A timer, not a call from whichever thread let go: waking the loop costs more than it.
        if not self._telling:
            self._telling = True
            self._loop.call_later(_RELEASE_PERIOD_S, self._tell_released)

    def _tell_released(self) -> None:
        self._telling = False
        if self._released:
            numbers = [self._released.popleft() for _ in range(len(self._released))]
            self._say(Frame(Kind.RELEASE, 0, encode_numbers(numbers)))
        if self._arena.read and self._open:
            self._tell_released_later()

    def _tell_state(self) -> None:
        self._say(Frame(Kind.STATE, 0, encode_state(self._engine)))

    @property
    def _open(self) -> bool:
        return self._channel is not None and self._channel.open

    def _say(self, frame: Frame) -> None:
        if self._channel is not None:
            self._channel.send(frame)


def _let_go(error: BaseException | None) -> None:
    """Part an error from the frames it came through, which hold its request.

    One that was a local variable where it was raised would keep the slot until garbage is
    collected.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__context__
