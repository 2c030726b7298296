"""Model name -> its versions, and what to say of what is not there."""

import asyncio
import re
from collections.abc import Collection, Iterable

from scheduler.errors import Code, LoadError, ServingError, shown
from scheduler.observer import Observer
from scheduler.routing import Routes
from scheduler.scheduler import Scheduler
from scheduler.types import ModelSpec
from scheduler.versions import Versions


class Models:
    """Everything that is served. Requests in flight know their scheduler: any change may come."""

    def __init__(self, observer: Observer) -> None:
        self.copies: set[asyncio.Task[None]] = set()  # of all shadows
        self._observer = observer
        self._models: dict[str, Versions] = {}

    def all(self) -> tuple[Scheduler, ...]:
        """Return every version of every model."""
        return tuple([one for versions in self._models.values() for one in versions.all()])

    def of(self, model: str) -> tuple[Scheduler, ...]:
        """Return every version of ``model``, perhaps none."""
        versions = self._models.get(model)
        return versions.all() if versions else ()

    def add(self, scheduler: Scheduler) -> Scheduler | None:
        """Serve ``scheduler``; return the one of the same version whose place it takes."""
        name = scheduler.spec.name
        if name not in self._models:
            self._models[name] = Versions(name, self._observer, self.copies)
        return self._models[name].add(scheduler)

    def remove(self, model: str, version: str = "") -> None:
        """Serve ``model``, which is served, or that version of it, no longer."""
        versions = self._models[model]
        if version:
            versions.remove(version)
        if not version or not len(versions):
            del self._models[model]

    def replace(self, failed: Scheduler, fresh: Scheduler) -> None:
        """Let ``fresh`` serve in the place of ``failed``, under the same name."""
        self._models[fresh.spec.name].replace(failed, fresh)

    def can_replace(self, failed: Scheduler, spec: ModelSpec) -> bool:
        """Return whether ``failed`` still serves, under that name, and no other that version."""
        served = self.of(spec.name)
        others = [one.spec.version for one in served if one is not failed]
        return failed in served and spec.version not in others

    def route(self, model: str, routes: Routes) -> None:
        """Send the requests to ``model``, if it is served, by ``routes`` from now on."""
        if model in self._models:
            self._models[model].route(routes)

    def versions(self, model: str) -> Versions | None:
        """Return the versions of ``model``, "" being the only one; None if there are none."""
        if not model and len(self._models) == 1:
            (versions,) = self._models.values()
            return versions
        return self._models.get(model)

    def nothing_called(self, model: str, version: str) -> ServingError:
        """Return the error for what is not served."""
        specs = [scheduler.spec for scheduler in self.all()]
        return not_served(tuple(self._models), specs, model, version)


def not_served(
    names: Collection[str], specs: Iterable[ModelSpec], model: str, version: str
) -> ServingError:
    """Return the error for what is not among the models called ``names``, whose are ``specs``."""
    if not model and len(names) != 1:
        known = f"name one of the models: {', '.join(names)}" if names else "no model is served"
    elif not version:
        known = f"no model {shown(model)}; served: {', '.join(names) or 'none'}"
    else:
        served = ", ".join(f"{spec.name} {spec.version}" for spec in specs) or "none"
        what = f"no model {shown(model)} of version" if model else "no version"
        known = f"{what} {shown(version)}; served: {served}"
    return ServingError(Code.MODEL_NOT_FOUND, known)


def still_loading() -> ServingError:
    """Return the error for a request that comes before the first model can answer."""
    return ServingError(Code.UNAVAILABLE, "the model is still loading", retry_after_s=1.0)


def check_loaded(spec: ModelSpec, lanes: int) -> None:
    """Refuse a loaded backend that cannot be served. Raises LoadError."""
    for what, text in (("name", spec.name), ("version", spec.version)):
        if not re.fullmatch(r"[A-Za-z0-9._-]+", text):
            raise LoadError(
                f"model {what} {shown(text)}: use letters, digits, '.', '_' and '-' only"
                f" (--{what}), it becomes part of a URL"
            )
    if lanes < 1 or spec.max_batch_rows < 1:
        raise LoadError(
            f"model {spec.name!r}: lanes ({lanes}) and max_batch_rows"
            f" ({spec.max_batch_rows}) must be at least 1"
        )
