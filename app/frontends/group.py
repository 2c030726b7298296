"""All front ends as what the server starts and stops: transports."""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass
from typing import Any

from app.access.ledger import Ledger
from app.frontends.settings import FrontEndSettings
from app.frontends.supervisor import Addresses, FrontEnd
from app.series import Counters, Family, Gauges
from scheduler.engine import Engine
from transports.base import Transport
from transports.sharing import Reserved, Shareable

logger = logging.getLogger(__name__)

# Beyond the grace: how long a front end that was told to leave may take to end.
_LEAVE_S = 3.0
# How long a scrape waits at most for what front ends have yet to report.
_TELL_S = 0.2


@dataclass(frozen=True)
class Shared:
    """A transport that front ends serve: ``built`` reserves ports, ``options`` make it there."""

    built: Shareable
    options: Any


class Group:
    """``count`` front ends, each with ``slot_bytes`` of shared memory, that serve ``shared``."""

    def __init__(
        self,
        count: int,
        slot_bytes: int,
        shared: Mapping[str, Shared],
        settings: Mapping[str, Any],
        ledger: Ledger | None = None,
    ) -> None:
        self.front_ends: list[FrontEnd] = []
        self.ledger = ledger
        self._count = count
        self._slot_bytes = slot_bytes
        self._shared = shared
        self._settings = settings
        self._reserved: dict[str, Reserved] = {}
        self._keeping: list[asyncio.Task[None]] = []
        self._starting: asyncio.Task[Addresses] | None = None
        self._stopping: asyncio.Task[None] | None = None

    def transports(self) -> dict[str, Transport]:
        """Return what stands for each transport where the server starts and stops them."""
        return {name: _Far(self, name) for name in self._shared}

    def families(self) -> Iterable[Family]:
        """Return the series about the front ends themselves."""
        alive = Gauges("narsil_frontends", "Front-end processes that listen", ())
        alive.by[()] = sum(one.alive for one in self.front_ends)
        starts = Counters("narsil_frontend_starts", "Processes started", ("frontend",))
        requests = Gauges("narsil_frontend_requests", "Requests it waits for", ("frontend",))
        slots = Gauges("narsil_frontend_slots", "Slots that are read", ("frontend",))
        for one in self.front_ends:
            name = (str(one.number),)
            starts.by[name] = one.starts
            if one.session is not None:
                requests.by[name], slots.by[name] = one.session.requests, one.session.slots
        return alive, starts, requests, slots

    async def settled(self, limit_s: float = _TELL_S) -> None:
        """Return once all have reported what they had heard by now, after ``limit_s`` at most."""
        telling = [asyncio.ensure_future(one.told()) for one in self.front_ends]
        if telling:
            _, late = await asyncio.wait(telling, timeout=limit_s)
            for one in late:
                one.cancel()

    async def start(self, engine: Engine, name: str) -> tuple[str, ...]:
        """Start everything, if that is not done; return the addresses of one transport.

        Nothing, if it is another's that cannot be had. Raises OSError.
        """
        if self._starting is None:
            self._starting = asyncio.create_task(self._start(engine))
        try:
            addresses = await asyncio.shield(self._starting)
        except _PortError as error:
            if error.transport == name:
                raise error.reason from error
            return ()
        return addresses[name]

    async def stop(self, grace_s: float) -> None:
        """Have all answer what is under way within ``grace_s`` seconds, and end them."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(grace_s))
        await asyncio.shield(self._stopping)

    async def _start(self, engine: Engine) -> Addresses:
        for name, shared in self._shared.items():
            try:
                self._reserved[name] = await shared.built.reserve(self._count)
            except OSError as error:
                raise _PortError(name, error) from error
        for number in range(self._count):
            front_end = FrontEnd(engine, self._settings_of(number), self._slot_bytes)
            self.front_ends.append(front_end)
            self._keeping.append(asyncio.create_task(front_end.keep()))
        listening = await asyncio.gather(*(one.ready for one in self.front_ends))
        pids = ", ".join(str(one.pid) for one in self.front_ends)
        logger.info("%d front ends listen: processes %s", self._count, pids)
        return listening[0]

    async def _stop(self, grace_s: float) -> None:
        if self._starting is not None:
            self._starting.cancel()
        for reserved in self._reserved.values():
            reserved.release()
        for one in self.front_ends:
            one.stop(grace_s)
        if self._keeping:
            await asyncio.wait(self._keeping, timeout=grace_s + _LEAVE_S)
        for one in self.front_ends:
            one.kill()
        if self._keeping:
            await asyncio.wait(self._keeping)
        for reserved in self._reserved.values():
            reserved.close()

    def _settings_of(self, number: int) -> FrontEndSettings:
        """Return what one front end is told; which memory is its own is not known yet."""
        return FrontEndSettings(
            number=number,
            memory=-1,
            transports={name: asdict(shared.options) for name, shared in self._shared.items()},
            shares={name: astuple(one.shares[number]) for name, one in self._reserved.items()},
            ledger=self.ledger.descriptor if self.ledger else -1,
            **self._settings,
        )


class _PortError(Exception):
    """Say which transport has no port, and the ``reason``."""

    def __init__(self, transport: str, reason: OSError) -> None:
        super().__init__(transport)
        self.transport = transport
        self.reason = reason


class _Far:
    """A transport in other processes."""

    def __init__(self, group: Group, name: str) -> None:
        self._group = group
        self._name = name

    async def start(self, engine: Engine) -> tuple[str, ...]:
        """Start all front ends, with the first; return the URLs. Raises OSError."""
        return await self._group.start(engine, self._name)

    async def stop(self, grace_s: float) -> None:
        """Stop all front ends, with the first."""
        await self._group.stop(grace_s)
