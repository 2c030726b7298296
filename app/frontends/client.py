"""The engine as its front ends see it: what transports call, answered by another process."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import orjson

from app.frontends.channel import Channel
from app.frontends.messages import (
    decode_answer,
    decode_numbers,
    decode_refusal,
    encode_request,
    place,
    write,
)
from app.frontends.slots import Arena, Slot
from app.frontends.state import State, decode_state
from app.frontends.texts import Tokens
from app.frontends.wire import Frame, Kind, WireError
from scheduler.asking import Asked, AskedByTask, Asker
from scheduler.engine import Engine
from scheduler.errors import Code, ServingError, invalid
from scheduler.observer import Observer
from scheduler.options import SchedulerOptions
from scheduler.types import InferRequest, InferResponse, ModelSpec
from scheduler.updates import Updates
from scheduler.validate import validate

_GONE = "the engine process is gone"
_SILENT = "the engine process does not respond"


class RemoteEngine(Engine):
    """Pass requests on by ``channel``, their tensors in slots of ``arena``.

    Whoever owns the channel passes on what it brings, to ``received``.
    """

    def __init__(self, arena: Arena, observer: Observer) -> None:
        super().__init__(SchedulerOptions(), observer)
        self.state = State()
        self._silent = False
        self._tokens = Tokens()
        self._arena = arena
        self._channel: Channel | None = None
        self._watching: list[Callable[[], None]] = []
        self._asked: dict[int, asyncio.Future[Frame]] = {}  # requests and calls
        self._slots: dict[int, Slot] = {}
        self._number = 0
        self._loop = asyncio.get_running_loop()

    def connect(self, channel: Channel) -> None:
        """Say everything by ``channel`` from now on."""
        self._channel = channel

    @property
    def started(self) -> bool:
        """Every configured model has been loaded once."""
        return self.state.started

    @property
    def live(self) -> bool:
        """No model has failed for good."""
        return self.state.live and not self._silent

    @property
    def ready(self) -> bool:
        """New requests are welcome."""
        return self.state.ready and not self._silent

    @property
    def draining(self) -> bool:
        """Whether readiness is off for good, because the server is about to stop."""
        return self.state.draining

    @property
    def slot_bytes(self) -> int:
        """What requests hold of the shared memory."""
        return self._arena.taken_bytes

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` whenever the engine has said what has changed; return an undo."""
        self._watching.append(callback)
        return lambda: self._watching.remove(callback)

    def specs(self) -> tuple[ModelSpec, ...]:
        """Return the models being served, every version."""
        return self.state.specs

    def spec(self, model: str, version: str = "") -> ModelSpec:
        """Return one model's spec. Raises ServingError."""
        return self.state.spec(model, version)

    def updates(self, model: str, version: str = "") -> Updates:
        """Refuse: only the admin listener replaces rows. Raises ServingError."""
        raise ServingError(Code.UNSUPPORTED, "rows are replaced by the admin listener only")

    def ask(self, request: InferRequest, asker: Asker) -> Asked:
        """Have ``asker`` told what the engine answers, by a task."""
        return AskedByTask(self.infer(request), asker, request.id)

    async def infer(self, request: InferRequest) -> InferResponse:
        """Answer ``request``; cancelling the awaiting task cancels it. Raises ServingError."""
        if not request.timeout_s > 0:  # nor is NaN, of which JSON knows nothing
            raise self._refused(request, "timeout")
        slot, payload = self._written(request)
        number = self._next_number()
        self._slots[number] = slot
        frame = await self._ask(Frame(Kind.INFER, number, payload))
        return decode_answer(frame.payload)

    async def call(self, name: str, *arguments: str) -> Any:
        """Have the engine do something else; return what it says. Raises ServingError."""
        payload = orjson.dumps([name, *arguments])
        frame = await self._ask(Frame(Kind.CALL, self._next_number(), payload))
        return orjson.loads(frame.payload)

    def received(self, frame: Frame) -> None:
        """Take what the engine says. Raises WireError."""
        if self._silent:
            self._silent = False
            self._become(self.state)
        if frame.kind in (Kind.ANSWER, Kind.RESULT, Kind.REFUSAL):
            asked = self._asked.pop(frame.number, None)
            if asked is not None and not asked.done():
                asked.set_result(frame)
        elif frame.kind is Kind.RELEASE:
            for number in decode_numbers(frame.payload):
                self._released(number)
        elif frame.kind is Kind.STATE:
            self._become(decode_state(frame.payload, self._tokens))
        elif frame.kind is not Kind.BEAT:
            raise WireError(f"an engine does not say {frame.kind.name}")

    def lost(self) -> None:
        """Fail everybody who waits: the engine is gone, and nobody reads the slots any more."""
        state = self.state
        self._become(State(state.started, False, False, True, specs=state.specs,
                           defaults=state.defaults, labels=state.labels))  # fmt: skip
        self._fail(_GONE)

    def silent(self) -> None:
        """Fail everybody who waits, and who comes until the engine says something again."""
        self._silent = True
        self._become(self.state)
        for number in self._asked:
            self._say(Frame(Kind.CANCEL, number))
        self._fail(_SILENT)

    def _fail(self, why: str) -> None:
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(_unavailable(why))
        self._asked.clear()

    def _written(self, request: InferRequest) -> tuple[Slot, bytes]:
        """Return the request as the engine reads it. Raises ServingError."""
        texts = self._tokens.found(request.inputs)
        try:
            placed, size = place(request.inputs)
            slot = self._arena.take(size)
        except ValueError as error:
            raise self._refused(request, str(error)) from error
        try:
            payload = encode_request(request, time.monotonic(), slot, placed, texts)
        except TypeError as error:  # a surrogate, or an integer of 65 bits
            self._arena.give(slot)
            raise self._refused(request, str(error)) from error
        write(self._arena.bytes_of(slot), placed, request.inputs)
        return slot, payload

    def _refused(self, request: InferRequest, why: str) -> ServingError:
        """Return what the engine would have said, if it says anything, of what does not get there.

        Raises ServingError.
        """
        spec = self.spec(request.model, request.version)
        try:
            validate(spec, request, int(spec.properties.get("scheduler.priorities", "1")))
        except ServingError as refusal:
            found = refusal
        else:
            found = invalid(why)
        found.version = spec.version
        return found

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    async def _ask(self, frame: Frame) -> Frame:
        """Return the answer to ``frame``. Raises ServingError."""
        if self._silent or not self._say(frame):
            self._released(frame.number)
            raise _unavailable(_SILENT if self._silent else _GONE)
        asked = self._asked[frame.number] = self._loop.create_future()
        try:
            answer: Frame = await asked
        except asyncio.CancelledError:
            if self._asked.pop(frame.number, None) is not None:
                self._say(Frame(Kind.CANCEL, frame.number))
            raise
        if answer.kind is Kind.REFUSAL:
            raise decode_refusal(answer.payload)
        return answer

    def _say(self, frame: Frame) -> bool:
        if self._channel is None or not self._channel.open:
            return False
        self._channel.send(frame)
        return True

    def _released(self, number: int) -> None:
        slot = self._slots.pop(number, None)
        if slot is not None:
            self._arena.give(slot)

    def _become(self, state: State) -> None:
        self.state = state
        self.refused = state.refused
        self.control = None if state.controlled is None else RemoteControl(self)
        for callback in tuple(self._watching):
            callback()


class RemoteControl:
    """Loads and unloads models where they are."""

    def __init__(self, engine: RemoteEngine) -> None:
        self._engine = engine

    @property
    def names(self) -> tuple[str, ...]:
        """Every model that can be loaded, served at present or not."""
        return self._engine.state.controlled or ()

    async def load(self, model: str) -> None:
        """Load the files of ``model`` anew. Raises ServingError."""
        await self._engine.call("load", model)

    async def unload(self, model: str) -> None:
        """Serve ``model`` no longer. Raises ServingError."""
        await self._engine.call("unload", model)


def _unavailable(why: str) -> ServingError:
    return ServingError(Code.UNAVAILABLE, why, retry_after_s=1.0)
