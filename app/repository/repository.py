"""Serve what a repository holds: load it at the start, follow its changes, or do as clients say."""

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Protocol

from app.models import Served
from app.repository.keeper import Keeper
from app.repository.listing import Listing, Place, PlaceError
from app.repository.loads import Loads
from app.repository.options import EXPLICIT, POLL, RepositoryOptions
from app.repository.plan import Planner
from app.repository.settle import Settler
from app.turns import Refusal, Turns, done
from scheduler.control import Refused
from scheduler.engine import Engine
from scheduler.errors import Code, ServingError, shown
from scheduler.threads import run_in_thread

logger = logging.getLogger(__name__)


class Figures(Protocol):
    """Who shows how the repository fares."""

    def repository(self, reachable: bool, refused: Sequence[Refused]) -> None:
        """Show whether it can be read, and what is refused."""


class Repository:
    """Keep ``engine`` serving what lies in ``place``; a ``ModelControl``.

    What is under way goes on if whoever asked for it leaves. A place that cannot be read changes
    nothing: what is served serves on.
    """

    def __init__(
        self,
        engine: Engine,
        place: Place,
        options: RepositoryOptions,
        planner: Planner,
        figures: Figures,
        grace_s: float,
    ) -> None:
        self._engine = engine
        self._place = place
        self._options = options
        self._figures = figures
        self._keepers: dict[str, Keeper] = {}
        self._listing: Listing = {}
        self._settler = Settler(options.settle_s)
        self._turns = Turns()
        self._loads = Loads(options.loads_at_once, options.load_timeout_s, self._show)
        self._keeper = partial(
            Keeper, engine=engine, place=place, planner=planner, loads=self._loads, grace_s=grace_s
        )
        self._looking = asyncio.Lock()
        self._scanning: asyncio.Future[Listing] | None = None
        self._lost = ""  # why the place cannot be read

    @property
    def names(self) -> tuple[str, ...]:
        """Every model that was there when the repository was last read, or is served."""
        return tuple(sorted({*self._listing, *self._serving()}))

    def served(self, model: str) -> Served | None:
        """Return what ``model`` is served from by default, None if it is not served."""
        keeper = self._keepers.get(model)
        return keeper.served if keeper else None

    @property
    def busy(self) -> bool:
        """Whether anything is being loaded or unloaded."""
        return self._turns.busy

    async def start(self) -> list[Served]:
        """Load what is to be served at first; what is refused keeps no other from serving.

        Raises PlaceError if the place cannot be read and will not be again.
        """
        listing = await self._look()
        if listing is None and self._options.mode != POLL:
            raise PlaceError(self._lost)
        self._listing = self._settler.adopt(listing or {})
        chosen = self._options.load if self._options.mode == EXPLICIT else sorted(self._listing)
        for name in chosen:
            if name not in self._listing:
                raise PlaceError(f"{self._place.url} has no model {name!r} (repository.load)")
        await self._follow(chosen)
        keepers = [self._keepers[name] for name in sorted(self._keepers)]
        return [one for keeper in keepers if (one := keeper.served) is not None]

    async def run(self) -> None:
        """Follow changes, in mode poll; for ever."""
        while self._options.mode == POLL:
            await asyncio.sleep(self._pause_s())
            try:
                await self.look()
            except Exception:  # supervision: what one look meets must not end the others
                logger.exception("looking at the repository %s failed", self._place.url)

    async def look(self) -> None:
        """Read the place and do what its changes ask for, once they have come to rest."""
        async with self._looking:
            listing = await self._look()
            if listing is None:
                return
            self._listing = self._settler.look(listing, time.monotonic())
            await self._follow({*self._listing, *self._keepers})

    async def load_all(self) -> None:
        """Look at once; in mode explicit, and none, take what is there, at rest or not."""
        if self._options.mode == POLL:
            await self.look()
            return
        listing = await self._look(now=True)
        if listing is not None:
            self._listing = self._settler.adopt(listing)
            explicit = self._options.mode == EXPLICIT
            await self._follow(self._serving() if explicit else {*listing, *self._keepers})

    async def _follow(self, models: Iterable[str]) -> None:
        """Do what the files of ``models`` ask for; one that hangs holds up no other."""
        begin = self._turns.shared
        await asyncio.gather(
            *(
                self._loads.follow(model, partial(begin, model, partial(self._sync, model)))
                for model in sorted(models)
            )
        )

    async def load(self, model: str) -> None:
        """Load ``model`` as it lies there now. Raises ServingError."""
        self._check_explicit()
        loading = self._turns.shared(model, partial(self._load, model))
        if not await self._loads.in_time(model, loading):
            raise ServingError(Code.UNAVAILABLE, f"model {model!r} is {self._loads.reason}")
        await done(loading)

    async def unload(self, model: str) -> None:
        """Stop serving ``model`` once what it admitted is answered. Raises ServingError."""
        self._check_explicit()
        await done(self._turns.alone(model, partial(self._unload, model)))

    def _check_explicit(self) -> None:
        if not self._engine.started:
            raise ServingError(Code.UNAVAILABLE, "the model is still loading", retry_after_s=1.0)
        if self._options.mode != EXPLICIT:
            raise ServingError(
                Code.UNSUPPORTED,
                f"repository.mode is {self._options.mode}: only in mode {EXPLICIT} do clients load"
                " and unload models",
            )

    async def _load(self, model: str) -> Refusal | None:
        listing = await self._look(now=True)
        if listing is None:
            return Refusal(Code.UNAVAILABLE, f"the repository cannot be read: {self._lost}")
        self._listing = self._settler.adopt(listing)
        if model not in listing:
            known = ", ".join(sorted(listing)) or "none"
            return Refusal(
                Code.MODEL_NOT_FOUND,
                f"no model {shown(model)} in the repository; there are {known}",
            )
        await self._sync(model)
        reasons = [
            f"version {one.version}: {one.reason}" if one.version else one.reason
            for one in self._keepers[model].unmet
        ]
        if reasons:
            return Refusal(Code.INTERNAL, f"model {model!r} was not loaded: {'; '.join(reasons)}")
        return None

    async def _unload(self, model: str) -> Refusal | None:
        if model not in self._serving():
            return Refusal(Code.MODEL_NOT_FOUND, f"no model {shown(model)} is served")
        await self._keepers.pop(model).drop()
        self._show()
        return None

    async def _sync(self, model: str) -> None:
        found = self._listing.get(model)
        if found is None:
            if model in self._keepers:
                logger.info("%s: gone from the repository", model)
                await self._keepers.pop(model).drop()
        else:
            if model not in self._keepers:
                self._keepers[model] = self._keeper(model)
            await self._keepers[model].sync(found)
        self._show()

    async def _look(self, *, now: bool = False) -> Listing | None:
        """Return what is there, None if that cannot be told.

        ``now``: with all that was there when this was called, of which a listing that others wait
        for may have passed some by.
        """
        limit_s = self._options.scan_timeout_s
        if now and self._scanning is not None:
            await asyncio.wait([self._scanning], timeout=limit_s)
        if self._scanning is None or self._scanning.done():
            self._scanning = run_in_thread(self._place.scan, "scan")
        scanning = self._scanning
        try:
            listing = await asyncio.wait_for(asyncio.shield(scanning), limit_s)
            if not listing and self._serving():
                raise PlaceError("it is empty, and models of it are served")
        except TimeoutError:  # and it goes on: no other is begun
            self._lose(f"no listing within {limit_s:g} s")
            return None
        except PlaceError as error:
            self._lose(str(error))
            return None
        finally:
            if scanning.done() and self._scanning is scanning:
                self._scanning = None
        if self._lost:
            logger.info("repository %s can be read again", self._place.url)
        self._lost = ""
        self._show()
        return listing

    def _lose(self, reason: str) -> None:
        if not self._lost:  # once, not at each look
            logger.error(
                "repository %s cannot be read, %s on: %s", self._place.url,
                f"{', '.join(self._serving()) or 'nothing'} serves", reason,
            )  # fmt: skip
        self._lost = reason
        self._show()

    def _show(self) -> None:
        """Tell why what is not served is not."""
        refused = tuple(one for keeper in self._keepers.values() for one in keeper.refused)
        refused += self._loads.late
        self._engine.refused = refused
        self._figures.repository(not self._lost, refused)

    def _serving(self) -> list[str]:
        return sorted(name for name, keeper in self._keepers.items() if keeper.serves)

    def _pause_s(self) -> float:
        poll_s, settle_s = self._options.poll_s, self._options.settle_s
        return min(poll_s, max(settle_s, 0.01)) if self._settler.waits else poll_s
