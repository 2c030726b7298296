"""Start front ends, watch them, and start anew what has died."""

import asyncio
import contextlib
import logging
import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, replace

import orjson

from app.frontends.channel import Channel
from app.frontends.heart import Heart
from app.frontends.session import Session
from app.frontends.settings import FrontEndSettings
from app.frontends.slots import ReadArena, make_memory
from app.frontends.wire import Frame, Kind, WireError
from scheduler.ended import how_ended
from scheduler.engine import Engine
from transports.sharing import Share

logger = logging.getLogger(__name__)

# Between a death and the next start: twice as long each time, until one has lived for a while.
_FIRST_BACK_OFF_S = 0.1
_LONGEST_BACK_OFF_S = 5.0
_SETTLED_S = 10.0
# So long a process may take until it listens.
_START_S = 60.0
Addresses = Mapping[str, tuple[str, ...]]


class FrontEnd:
    """One process at a time, of those with the same number; ``starts`` counts them."""

    def __init__(self, engine: Engine, settings: FrontEndSettings, slot_bytes: int) -> None:
        self.starts = 0
        self.ready: asyncio.Future[Addresses] = asyncio.get_running_loop().create_future()
        self._engine = engine
        self._settings = settings
        self._slot_bytes = slot_bytes
        self._process: asyncio.subprocess.Process | None = None
        self._session: Session | None = None
        self._heart: Heart | None = None
        self._channel: Channel | None = None
        self._listens = False
        self._told = asyncio.Event()

    @property
    def number(self) -> int:
        """Which one of all it is."""
        return self._settings.number

    @property
    def alive(self) -> bool:
        """Whether a process runs and has said that it listens."""
        return self._listens and self._channel is not None and self._channel.open

    @property
    def pid(self) -> int:
        """The process's, 0 while none runs."""
        return self._process.pid if self._process else 0

    @property
    def session(self) -> Session | None:
        """What is under way for the process that runs, or ran last."""
        return self._session

    async def told(self) -> None:
        """Return once it has reported what it had heard by now, or is gone."""
        if self.alive and self._session is not None:
            await self._session.told()

    async def keep(self) -> None:
        """Run one process after the other until told to stop."""
        back_off_s = _FIRST_BACK_OFF_S
        while not self._told.is_set():
            began_s = time.monotonic()
            ended = await self._ended()
            if self._told.is_set():
                break
            if not self.ready.done():
                self._fail(f"front end {self.number} {ended}")
                break
            if time.monotonic() - began_s > _SETTLED_S:
                back_off_s = _FIRST_BACK_OFF_S
            logger.error(
                "front end %d %s; its connections are lost, another starts in %g s",
                self.number, ended, back_off_s,
            )  # fmt: skip
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._told.wait(), back_off_s)
            back_off_s = min(2 * back_off_s, _LONGEST_BACK_OFF_S)

    def stop(self, grace_s: float) -> None:
        """Have the process answer what it has under way, and leave."""
        self._told.set()
        if self._channel is not None:
            self._channel.send(Frame(Kind.STOP, 0, orjson.dumps(grace_s)))
            self._channel.flush()

    def kill(self) -> None:
        """End the process at once."""
        self._told.set()
        self._end_process()

    def _end_process(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def _ended(self) -> str:
        """Run one process; return how it ended."""
        try:
            return how_ended(await self._run_one())
        except OSError as error:  # no descriptor, process or memory is left, for now
            return f"cannot start: {error}"

    async def _run_one(self) -> int:
        self._listens = False
        memory = make_memory(self._slot_bytes)
        try:
            arena = ReadArena(memory)
            own, self._process = await self._started(memory)
            self.starts += 1
            self._converse(own, arena)
        finally:
            os.close(memory)
        if self._told.is_set():  # while it started: it has not heard
            self._end_process()
        limit = asyncio.get_running_loop().call_later(_START_S, self._check_listens)
        code = await self._process.wait()
        limit.cancel()
        if self._heart is not None:
            self._heart.stop()
        if self._channel is not None:
            self._channel.close()
        if self._session is not None:
            self._session.close()
        return code

    async def _started(self, memory: int) -> tuple[socket.socket, asyncio.subprocess.Process]:
        """Return our end of a new process's channel, and the process. Raises OSError."""
        own, others = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with others:
                settings = replace(self._settings, memory=memory)
                own.send(orjson.dumps(asdict(settings)))
                inherited = [others.fileno(), memory]
                inherited += [settings.ledger] if settings.ledger >= 0 else []
                shares = [Share(*fields) for fields in settings.shares.values()]
                inherited += [one for each in shares for one in (each.udp, each.unix) if one >= 0]
                return own, await _spawn(others.fileno(), inherited)
        except BaseException:
            own.close()
            raise

    def _converse(self, own: socket.socket, arena: ReadArena) -> None:
        session = Session(self._engine, arena, self._heard)
        self._session = session

        def lost(why: str) -> None:
            logger.debug("front end %d: %s", self.number, why)
            session.close()
            if not self._told.is_set():  # it has ended, or it says what nobody can say
                self._end_process()

        self._channel = Channel(own, session.received, lost)
        session.connect(self._channel)

    def _heard(self, frame: Frame) -> None:
        try:
            said = orjson.loads(frame.payload)
            if frame.kind is Kind.READY:
                self._listens = True
                assert self._channel is not None
                self._heart = Heart(self._channel, self._settings.hung_s, self._silent)
                addresses = {name: tuple(urls) for name, urls in said.items()}
                if self.ready.done():
                    logger.info("front end %d listens again: process %d", self.number, self.pid)
                else:
                    self.ready.set_result(addresses)
            elif frame.kind is Kind.FAILED:
                self._fail(f"front end {self.number}: {said}")
            else:
                raise WireError(f"a front end does not say {frame.kind.name}")
        except (ValueError, TypeError, AttributeError) as error:
            raise WireError(f"{frame.kind.name}: {error}") from error

    def _check_listens(self) -> None:
        if not self._listens:
            logger.error("front end %d does not listen after %g s: it is killed",
                         self.number, _START_S)  # fmt: skip
            self._end_process()

    def _silent(self) -> None:
        logger.error("front end %d has said nothing for %g s: it is killed",
                     self.number, self._settings.hung_s)  # fmt: skip
        self._end_process()

    def _fail(self, why: str) -> None:
        if self.ready.done():
            logger.error("%s", why)
        else:
            self.ready.set_exception(OSError(why))


async def _spawn(descriptor: int, inherited: list[int]) -> asyncio.subprocess.Process:
    # -P: nothing in the present folder is taken for ours. A session of its own: Ctrl-C is the
    # engine's to hear.
    return await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "app.frontends.start", str(descriptor),
        stdin=asyncio.subprocess.DEVNULL, pass_fds=inherited, start_new_session=True,
    )  # fmt: skip
