"""The admin listener's pages for embedding updates: what is applied, applying, rolling back."""

import asyncio
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request

from scheduler.engine import Engine
from scheduler.errors import Code, ServingError, invalid, shown
from scheduler.threads import Worker
from scheduler.updates import Applied, Updates
from transports import updates
from transports.http.body import Body
from transports.http.head import JSON
from transports.http.intake import BodyLimits, Intake

SHOWN_DELTAS = 100
# Taken as fast as that, the event loop is busy with a delta for a tenth of the time.
MOST_BYTES_PER_S = 64 * 1024 * 1024
_QUERY = ("version",)


def embedding_pages(engine: Engine, *, writable: bool) -> APIRouter:
    """Return the routes; without ``writable`` those that change a model answer 501."""
    router = APIRouter(prefix="/v1/models/{model}/embeddings", tags=["embeddings"])
    intake = Intake(BodyLimits())
    worker = Worker("delta")
    one = asyncio.Lock()  # a delta is many times its body, unpacked: those that wait are bodies

    @router.get("")
    async def show(model: str, version: str = "") -> dict[str, Any]:
        """Say how many deltas are in force, the last of them, and which tables there are."""
        return _shown(engine.updates(model, version))

    @router.post("")
    async def apply(model: str, request: Request, version: str = "") -> dict[str, Any]:
        """Replace rows: Arrow IPC, Parquet or JSON."""
        _allow(writable)
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        is_json = content_type == JSON
        _check_query(request)
        body = Body(request.receive, intake)
        try:
            declared = request.headers.get("content-length", "")
            content = await body.pieces(
                int(declared) if declared.isdecimal() else None,
                None if is_json else 0,
                bytes_per_s=MOST_BYTES_PER_S,
            )
            async with one:
                decoded = await updates.decode(engine, content, worker, is_json=is_json)
                delta = updates.addressed(decoded, model, version)
                return asdict(await updates.apply(engine, delta))
        finally:
            body.release()

    @router.post("/rollback")
    async def roll_back(model: str, version: str = "") -> dict[str, Any]:
        """Restore every row as it was loaded."""
        _allow(writable)
        return asdict(await updates.roll_back(engine, model, version))

    return router


def _allow(writable: bool) -> None:
    if not writable:
        raise ServingError(Code.UNSUPPORTED, "embedding updates are not allowed (admin.updates)")


def _check_query(request: Request) -> None:
    for name in request.query_params:
        if name not in _QUERY:
            raise invalid(f"unknown query parameter {shown(name)}; known: {', '.join(_QUERY)}")


def _shown(state: Updates) -> dict[str, Any]:
    try:
        tables, why = [asdict(table) for table in state.tables()], ""
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
