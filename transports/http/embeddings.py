"""The admin listener's pages for embedding updates: what is applied, and rolling back."""

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter

from scheduler.engine import Engine
from scheduler.errors import ServingError
from scheduler.updates import Applied, Updates
from transports import updates
from transports.http.deltas import OFF, PATH, check_writable

SHOWN_DELTAS = 100


def embedding_pages(engine: Engine, *, writable: bool) -> APIRouter:
    """Return the routes; without ``writable`` the one that changes a model answers 501."""
    router = APIRouter(prefix=PATH, tags=["embeddings"])

    @router.get("")
    async def show(model: str, version: str = "") -> dict[str, Any]:
        """Say how many deltas are in force, the last of them, and which tables there are."""
        return _shown(engine.updates(model, version), "" if writable else OFF)

    @router.post("/rollback")
    async def roll_back(model: str, version: str = "") -> dict[str, Any]:
        """Restore every row as it was loaded."""
        check_writable(writable)
        return asdict(await updates.roll_back(engine, model, version))

    return router


def _shown(state: Updates, off: str) -> dict[str, Any]:
    """Return what is known of a model's deltas; ``off`` says why nobody may post any, if so."""
    try:
        tables, why = [asdict(table) for table in state.tables()], off
    except ServingError as error:
        tables, why = [], error.detail
    return {
        "model": state.spec.name,
        "version": state.spec.version,
        "sequence": state.sequence,
        "rows": state.rows,
        "updatable": not why,
        "reason": why,
        "deltas": [_applied(one) for one in state.applied[-SHOWN_DELTAS:]],
        "tables": tables,
    }


def _applied(one: Applied) -> dict[str, Any]:
    wanted = ("id", "sequence", "rows", "seconds", "at_s")
    return {name: getattr(one, name) for name in wanted}
