"""The versions of one model that are served, and which of them a request goes to."""

import asyncio
import random
from collections.abc import Iterable
from dataclasses import replace

from scheduler.asking import Asked, Asker
from scheduler.errors import ServingError, invalid
from scheduler.observer import Observer
from scheduler.routing import MAX_KEY_CHARS, Part, Routes, alike, pick
from scheduler.scheduler import Scheduler
from scheduler.shadow import Copying, Shadow
from scheduler.types import InferRequest

# What the properties of a version say of its routes.
LABELS, SHARE, SHADOW = "labels", "share", "shadow"


class Versions:
    """The schedulers of one model by version, in the order of their loading, and its routes.

    ``default`` answers what names no version, None while there is none. ``copies`` are the tasks
    of all shadows, which their owner ends.
    """

    def __init__(self, model: str, observer: Observer, copies: set[asyncio.Task[None]]) -> None:
        self.default: Scheduler | None = None
        self._model = model
        self._observer = observer
        self._copies = copies
        self._schedulers: dict[str, Scheduler] = {}
        self._routes = Routes()
        self._labels: dict[str, Scheduler] = {}
        self._split: tuple[Part, ...] = ()
        self._shadow: Shadow | None = None

    def __len__(self) -> int:
        return len(self._schedulers)

    def all(self) -> tuple[Scheduler, ...]:
        """Return every scheduler."""
        return tuple(self._schedulers.values())

    def route(self, routes: Routes) -> None:
        """Send requests by ``routes`` from now on."""
        self._routes = routes
        self._settle()

    def add(self, scheduler: Scheduler) -> Scheduler | None:
        """Serve ``scheduler``; return the one of the same version whose place it takes."""
        replaced = self._schedulers.get(scheduler.spec.version)
        self._schedulers[scheduler.spec.version] = scheduler
        self._settle()
        return replaced

    def remove(self, version: str) -> None:
        """Serve ``version`` no longer."""
        del self._schedulers[version]
        self._settle()

    def replace(self, failed: Scheduler, fresh: Scheduler) -> None:
        """Let ``fresh`` take the place of ``failed`` in the order too, whatever its version."""
        served = [fresh if one is failed else one for one in self._schedulers.values()]
        self._schedulers = {one.spec.version: one for one in served}
        self._settle()

    def named(self, version: str) -> Scheduler | None:
        """Return the scheduler of a version, or of a label."""
        return self._schedulers.get(version) or self._labels.get(version)

    def choose(self, version: str, key: str) -> Scheduler | None:
        """Return who answers a request that names ``version`` ("" is none) and has ``key``.

        An empty key draws lots. Raises ServingError for a key that is too long.
        """
        if version:
            return self.named(version)
        if not self._split:
            return self.default
        if len(key) > MAX_KEY_CHARS:
            raise invalid(f"key: {len(key)} characters, above the limit of {MAX_KEY_CHARS}")
        key = key or f"{random.getrandbits(64):x}"
        return self._schedulers[pick(self._split, self._model, key).version]

    def ask(self, scheduler: Scheduler, request: InferRequest, asker: Asker) -> Asked:
        """Have ``scheduler`` answer, and the shadow hear of it. Raises ServingError."""
        shadow = self._shadow
        if shadow is not None and shadow.scheduler is not scheduler:
            asker = Copying(asker, shadow, request, scheduler)
        try:
            return scheduler.ask(request, asker)
        except ServingError as error:
            error.version = scheduler.spec.version
            raise

    def _settle(self) -> None:
        """Work out who answers what, after a version or the routes have changed."""
        routes, served = self._routes, self._schedulers
        parts = [part for part in routes.split if part.version in served]
        self.default = self._the_default(parts)
        alike_parts = tuple(part for part in parts if self._is_like_default(part.version))
        self._split = alike_parts if len({part.version for part in alike_parts}) > 1 else ()
        self._labels = {
            label: served[version] for label, version in routes.labels.items() if version in served
        }
        self._shadow = self._the_shadow({part.version for part in self._split})
        for scheduler in served.values():
            shadowing = self._shadow is not None and scheduler is self._shadow.scheduler
            scheduler.stand_back(shadowing)
            self._describe(scheduler, shadowing=shadowing)

    def _the_default(self, parts: Iterable[Part]) -> Scheduler | None:
        heaviest = max(parts, key=lambda part: part.weight, default=None)
        wanted = heaviest.version if heaviest else self._routes.default
        if wanted in self._schedulers:
            return self._schedulers[wanted]
        shadow = self._routes.shadow.version if self._routes.shadow else ""
        last = [one for version, one in self._schedulers.items() if version != shadow]
        return next(reversed(last or [*self._schedulers.values()]), None)

    def _is_like_default(self, version: str) -> bool:
        return self.default is not None and alike(self._schedulers[version].spec, self.default.spec)

    def _the_shadow(self, answering: set[str]) -> Shadow | None:
        route = self._routes.shadow
        if route is None or route.version not in self._schedulers or route.version in answering:
            return None
        scheduler = self._schedulers[route.version]
        if scheduler is self.default or not self._is_like_default(route.version):
            return None
        if self._shadow and self._shadow.scheduler is scheduler and self._shadow.route == route:
            return self._shadow
        return Shadow(route, scheduler, self._observer, self._copies)

    def _describe(self, scheduler: Scheduler, *, shadowing: bool) -> None:
        """Show in the properties of a version what is sent to it."""
        of_it = {LABELS: ",".join(sorted(self._labels_of(scheduler)))}
        total = sum(part.weight for part in self._split)
        weights = [one.weight for one in self._split if one.version == scheduler.spec.version]
        of_it[SHARE] = f"{sum(weights) / total:g}" if weights else ""
        of_it[SHADOW] = "true" if shadowing else ""
        kept = {
            name: value for name, value in scheduler.spec.properties.items() if name not in of_it
        }
        shown = kept | {name: value for name, value in of_it.items() if value}
        if shown != scheduler.spec.properties:
            scheduler.spec = replace(scheduler.spec, properties=shown)

    def _labels_of(self, scheduler: Scheduler) -> list[str]:
        return [label for label, one in self._labels.items() if one is scheduler]
