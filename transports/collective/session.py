"""One caller, from its coming to its going."""

import asyncio
import logging
from dataclasses import dataclass

from scheduler.engine import Engine
from scheduler.errors import Code, ServingError
from transports.collective.budget import Budget
from transports.collective.call import Call, Meeting
from transports.collective.carriers import Carrier, CarrierGoneError, Nursery, out_of_turn
from transports.collective.channel import Channel
from transports.collective.messages import Ask, Cancel, Failure, Hello, Message, Ready, Welcome
from transports.collective.options import CollectiveOptions

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class House:
    """What all sessions share."""

    engine: Engine
    options: CollectiveOptions
    nursery: Nursery
    budget: Budget


class Session:
    """Serve one caller's requests, one after another."""

    def __init__(self, house: House, channel: Channel) -> None:
        self._house = house
        self._channel = channel
        self._hearing: asyncio.Task[Message | None] | None = None
        self._call: Call | None = None
        self._closing = False

    async def run(self) -> None:
        """Serve until the caller goes, breaks the rules, or ``close`` is called."""
        carrier: Carrier | None = None
        try:
            meeting = await self._met_in_time()
            carrier = meeting.carrier
            await self._serve(meeting)
        except ServingError as error:
            self._end(error.code, error.detail)
        except CarrierGoneError as error:
            logger.info("a caller was given up: %s", error)
            self._end(Code.UNAVAILABLE, f"the tensors cannot travel: {error}")
        finally:
            if self._hearing is not None:
                self._hearing.cancel()
            if carrier is not None:
                carrier.close()
            self._channel.close()

    def close(self) -> bool:
        """Take no more requests; return whether one is under way, which is still answered."""
        self._closing = True
        if self._call is None:
            self._say_goodbye()
        return self._call is not None

    async def _met_in_time(self) -> Meeting:
        limit_s = self._house.options.connect_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await self._meet()
        except TimeoutError as error:
            detail = f"not connected within {limit_s:g} s (option connect_timeout_s)"
            raise ServingError(Code.DEADLINE_EXCEEDED, detail) from error

    async def _meet(self) -> Meeting:
        """Let the caller in and bring it together with a carrier. Raises ServingError."""
        hello = await self._channel.next()
        if hello is None:
            raise CarrierGoneError("the caller has gone")
        if not isinstance(hello, Hello):
            raise out_of_turn(hello)
        access = self._house.engine.access
        caller = access.caller(hello.credential) if access is not None else None
        carrier = await self._house.nursery.carrier(self._channel.local_address)
        try:
            self._channel.send(Welcome(self._house.options.backend))
            await carrier.meet(self._channel)
            self._channel.send(Ready())
        except BaseException:
            carrier.close()
            raise
        house = self._house
        return Meeting(house.engine, house.budget, self._channel, carrier, caller)

    async def _serve(self, meeting: Meeting) -> None:
        while not self._closing:
            message = await self._next()
            if message is None or self._said_goodbye():
                return
            if isinstance(message, Ask):
                await self._answer(Call(meeting, message))
            elif not isinstance(message, Cancel):  # its answer was on its way
                raise out_of_turn(message)
        self._say_goodbye()

    async def _answer(self, call: Call) -> None:
        """Answer one request, listening meanwhile. Raises CarrierGoneError, ServingError."""
        self._call = call
        working = asyncio.create_task(call.answer())
        try:
            # A caller that has its scores may ask again before we know that it has them.
            while not (working.done() or (call.sending and self._listen().done())):
                hearing = self._listen()
                await asyncio.wait((working, hearing), return_when=asyncio.FIRST_COMPLETED)
                if hearing.done() and not (working.done() or call.sending):
                    self._heard(await self._next(), call)
            await working
            # Who asks and never reads may not fill our memory with refusals.
            await self._channel.flush()
        finally:
            self._call = None
            if not working.done():
                working.cancel()
                await asyncio.wait((working,))

    def _heard(self, message: Message | None, call: Call) -> None:
        """Act on what came while a request is under way."""
        if message is None:
            raise CarrierGoneError("the caller has gone")
        if not isinstance(message, Cancel):
            raise out_of_turn(message)
        if message.number == call.number:
            call.cancel()

    def _listen(self) -> "asyncio.Task[Message | None]":
        if self._hearing is None:
            self._hearing = asyncio.create_task(self._channel.next())
        return self._hearing

    async def _next(self) -> Message | None:
        message = await self._listen()
        self._hearing = None
        return message

    def _said_goodbye(self) -> bool:
        return self._closing

    def _say_goodbye(self) -> None:
        self._end(Code.UNAVAILABLE, "the server is shutting down")
        self._channel.close()

    def _end(self, code: Code, detail: str) -> None:
        """Tell the caller why its connection ends."""
        self._channel.send(Failure(0, code.value, detail, None))
