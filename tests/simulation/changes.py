"""What the engine is told to serve, and who must answer a request at any moment."""

import asyncio
import math
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from scheduler.engine import Engine
from scheduler.errors import Code, LoadError, ServingError
from scheduler.reload import Remake
from tests.simulation.backend import SimulatedBackend
from tests.simulation.journal import Journal
from tests.simulation.setting import FOREVER_S

MODELS = ("alpha", "beta")

MakeBackend = Callable[[str, str], SimulatedBackend]


@dataclass(eq=False, slots=True)
class Change:
    """One load, swap or unload under way, ``leaving`` the versions that it ends."""

    kind: str
    model: str
    version: str
    leaving: tuple[str, ...]
    backend: SimulatedBackend | None = None
    task: asyncio.Task[None] = field(init=False)

    def __str__(self) -> str:
        return f"{self.kind} {self.model} {self.version}".strip()


class Changes:
    """Load, swap and unload, one at a time for each model, and keep the books beside the engine.

    ``make`` makes the backend of a model and version.
    """

    def __init__(
        self, engine: Engine, journal: Journal, dice: random.Random, make: MakeBackend
    ) -> None:
        self.versions: list[tuple[str, str]] = []  # ever made: model, version
        self.under_way: dict[str, Change] = {}
        self._engine = engine
        self._journal = journal
        self._dice = dice
        self._make = make
        self._serving: dict[str, list[str]] = {model: [] for model in MODELS}

    def any(self) -> None:
        """Begin any change, if none is under way."""
        model = self._dice.choice(MODELS)
        if model not in self.under_way:
            kinds = [self.load, self.swap, self.swap, self.swap, self.unload]
            self._dice.choice(kinds if self._serving[model] else [self.load])(model)

    def load(self, model: str) -> None:
        """Begin to load another version of ``model``."""
        backend, remake = self._new(model)
        change = Change("load", model, backend.version, (), backend)
        self._begin(change, self._engine.load(backend, remake=remake))

    def swap(self, model: str) -> None:
        """Begin to put a new version in the place of all."""
        backend, remake = self._new(model)
        change = Change("swap", model, backend.version, tuple(self._serving[model]), backend)
        grace_s = self._grace_s(change)
        self._begin(change, self._engine.swap(backend, remake=remake, grace_s=grace_s))

    def unload(self, model: str) -> None:
        """Begin to unload ``model``, or one version of it."""
        serving = self._serving[model]
        version = self._dice.choice(["", *serving])
        change = Change("unload", model, version, (version,) if version else tuple(serving))
        grace_s = self._grace_s(change)
        self._begin(change, self._engine.unload(model, version, grace_s=grace_s))

    def target(self, model: str, version: str) -> str | None:
        """Return the version that the engine would ask, None for nobody; check that it may."""
        try:
            found: str | None = self._engine.spec(model, version).version
        except ServingError as error:
            self._journal.require(error.code is Code.MODEL_NOT_FOUND, error.detail)
            found = None
        allowed = self._allowed(model, version)
        wrong = f"{model} {version}: {found} would answer, not one of {allowed}"
        self._journal.require(found in allowed, wrong)
        return found

    def _allowed(self, model: str, version: str) -> set[str | None]:
        serving, change = self._serving[model], self.under_way.get(model)
        states = [serving]
        if change is not None:
            stays = [one for one in serving if one not in change.leaving]
            states.append(stays + [change.version] * (change.kind != "unload"))
        if version:
            return {version if version in state else None for state in states}
        return {state[-1] if state else None for state in states}

    def _new(self, model: str) -> tuple[SimulatedBackend, Remake]:
        version = f"v{len(self.versions)}"
        self.versions.append((model, version))
        return self._make(model, version), lambda: self._make(model, version)

    def _grace_s(self, change: Change) -> float:
        grace_s = self._dice.choice([0.0, 1 / 16, FOREVER_S, FOREVER_S])
        cuts_off_s = self._journal.loop.time() + grace_s
        self._journal.cuts_off_s.update(dict.fromkeys(change.leaving, cuts_off_s))
        return grace_s

    def _begin(self, change: Change, work: Coroutine[Any, Any, None]) -> None:
        self._journal.tell(f"{change} begins")
        self.under_way[change.model] = change
        change.task = asyncio.create_task(self._finish(change, work))

    async def _finish(self, change: Change, work: Coroutine[Any, Any, None]) -> None:
        serving = self._serving[change.model]
        try:
            await work
        except (LoadError, ServingError) as error:
            self._journal.tell(f"{change} fails: {error}")
            self._journal.require(self._may_fail(change), f"{change} fails")
        else:
            self._journal.tell(f"{change} has ended")
            stays = [version for version in serving if version not in change.leaving]
            serving[:] = stays + [change.version] * (change.kind != "unload")
        del self.under_way[change.model]

    def _may_fail(self, change: Change) -> bool:
        if change.backend is None:
            return not self._serving[change.model]
        return not change.backend.loaded or self._journal.close_s < math.inf
