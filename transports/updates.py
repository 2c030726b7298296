"""Apply deltas of embedding rows to what an engine serves, from whichever door they come."""

import dataclasses

from scheduler.deltas import Delta
from scheduler.engine import Engine
from scheduler.errors import Code, ServingError, invalid, shown
from scheduler.pace import Pace
from scheduler.threads import Worker
from scheduler.updates import Applied, RolledBack, Updates
from transports.codecs import delta_arrow, delta_json


async def decode(engine: Engine, pieces: list[bytes], worker: Worker, *, is_json: bool) -> Delta:
    """Return the delta in ``pieces``, which are let go of; on ``worker``, beside what is served.

    Raises ServingError.
    """
    served = [engine.updates(spec.name, spec.version) for spec in engine.specs()]
    read = delta_json.decode if is_json else delta_arrow.decode

    def decoded() -> Delta:
        pace = Pace(lambda: all(one.idle() for one in served))
        pace.wait_for_idle()
        body = b"".join(pieces)  # without Python's lock, if it is large
        pieces.clear()
        pace.rest()
        return read(body)

    return await worker.run(decoded)


def addressed(delta: Delta, model: str, version: str) -> Delta:
    """Return ``delta`` for a model named beside it. Raises ServingError if it says another."""
    for what, inside, beside in (
        ("model", delta.model, model),
        ("version", delta.version, version),
    ):
        if inside and beside and inside != beside:
            raise invalid(f"{what} is {shown(beside)} in the path, {shown(inside)} in the delta")
    return dataclasses.replace(delta, model=model or delta.model, version=version or delta.version)


async def apply(engine: Engine, delta: Delta) -> Applied:
    """Apply ``delta`` to the model that it names. Raises ServingError, and nothing changed."""
    updates = engine.updates(delta.model, delta.version)
    try:
        applied = await updates.apply(delta)
    except ServingError:
        _check_served(engine, updates, delta.model, delta.version)
        raise
    _check_served(engine, updates, delta.model, delta.version)
    return applied


async def roll_back(engine: Engine, model: str, version: str) -> RolledBack:
    """Restore the rows of a model as they were loaded. Raises ServingError."""
    updates = engine.updates(model, version)
    try:
        done = await updates.roll_back()
    except ServingError:
        _check_served(engine, updates, model, version)
        raise
    _check_served(engine, updates, model, version)
    return done


def _check_served(engine: Engine, updates: Updates, model: str, version: str) -> None:
    """Refuse what reached a model that is served no longer, whatever came of it there.

    Raises ServingError (UNAVAILABLE, MODEL_NOT_FOUND).
    """
    if engine.updates(model, version) is not updates:
        raise ServingError(
            Code.UNAVAILABLE,
            f"model {updates.spec.name!r} was replaced by a new load meanwhile, which has none of"
            " its deltas",
            retry_after_s=1.0,
        )
