"""Triton's model repository: what there is, and loading and unloading it if that is allowed."""

from collections.abc import Iterable
from typing import NamedTuple

from scheduler.control import ModelControl
from scheduler.engine import Engine
from scheduler.errors import Code, ServingError, shown

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
    """List the versions of every model, and what clients have unloaded."""
    ready = engine.ready
    state, reason = ("READY", "") if ready else ("UNAVAILABLE", "not ready")
    served = [Indexed(spec.name, spec.version, state, reason) for spec in engine.specs()]
    if only_ready:
        return served if ready else []
    known = {one.name for one in served}
    names = engine.control.names if engine.control else ()
    gone = [Indexed(name, "", "UNAVAILABLE", "unloaded") for name in names if name not in known]
    return served + gone


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
