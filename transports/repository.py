"""Triton's model repository: what there is, and loading and unloading it if that is allowed."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from scheduler.control import ModelControl
from scheduler.engine import Engine
from scheduler.errors import Code, ServingError, shown
from scheduler.types import ModelSpec

EXTENSION = "model_repository"
# The other parameters (unload_dependents) ask for what there is none of.
_FOREIGN = ("config", "file:")


class Indexed(NamedTuple):
    """A model's version and its state; no version if the model has been unloaded."""

    name: str
    version: str
    state: str
    reason: str


def index(engine: Engine, *, only_ready: bool) -> list[Indexed]:
    """List the versions of every model, what was refused, and what clients have unloaded."""
    ready = engine.ready
    refused = {(one.model, one.version): one.reason for one in engine.refused}
    served = [_served(spec, refused, ready=ready) for spec in engine.specs()]
    if only_ready:
        return served if ready else []
    versions = {(one.name, one.version) for one in served}
    models = {one.name for one in served}
    left = {
        (model, version): reason
        for (model, version), reason in refused.items()
        if (model, version) not in versions and (version or model not in models)
    }
    names = engine.control.names if engine.control else ()
    known = models | {model for model, _ in left}
    left |= {(name, ""): "unloaded" for name in names if name not in known}
    return served + [Indexed(*name, "UNAVAILABLE", reason) for name, reason in left.items()]


def _served(spec: ModelSpec, refused: Mapping[tuple[str, str], str], *, ready: bool) -> Indexed:
    """Describe a version that serves, and why what took its place in the files does not."""
    reason = refused.get((spec.name, spec.version)) or refused.get((spec.name, ""), "")
    if not ready:
        return Indexed(spec.name, spec.version, "UNAVAILABLE", "not ready")
    return Indexed(spec.name, spec.version, "READY", reason)


async def load(engine: Engine, model: str, repository: str, parameters: Iterable[str]) -> None:
    """Load ``model`` anew. Raises ServingError."""
    control = _control_of(engine, repository)
    for name in parameters:
        if name.startswith(_FOREIGN):
            raise ServingError(
                Code.UNSUPPORTED, f"parameter {shown(name)}: models are loaded as configured"
            )
    await control.load(model)


async def unload(engine: Engine, model: str, repository: str) -> None:
    """Unload ``model``. Raises ServingError."""
    await _control_of(engine, repository).unload(model)


def _control_of(engine: Engine, repository: str) -> ModelControl:
    if engine.control is None:
        raise ServingError(
            Code.UNSUPPORTED, "clients may not load and unload models (server.model_control)"
        )
    if repository:
        raise ServingError(Code.UNSUPPORTED, f"no repository {shown(repository)}: it has no name")
    return engine.control
