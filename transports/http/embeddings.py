"""The admin listener's pages for embedding updates: what is applied, applying, rolling back."""

import asyncio
from dataclasses import asdict
from http import HTTPStatus
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
from transports.http.problem import HttpError

SHOWN_DELTAS = 100
# Taken as fast as that, the event loop is busy with a delta for a tenth of the time.
MOST_BYTES_PER_S = 64 * 1024 * 1024
_QUERY = ("version",)
_FORM = "application/x-www-form-urlencoded"
_OFF = "embedding updates over this listener are off: --admin-updates (admin.updates) allows them"
_TYPES = (
    "application/json, application/vnd.apache.arrow.file, application/vnd.apache.arrow.stream,"
    " application/vnd.apache.parquet"
)


def embedding_pages(engine: Engine, *, writable: bool) -> APIRouter:
    """Return the routes; without ``writable`` those that change a model answer 501 (_OFF)."""
    router = APIRouter(prefix="/v1/models/{model}/embeddings", tags=["embeddings"])
    intake = Intake(BodyLimits())
    worker = Worker("delta")
    one = asyncio.Lock()  # a delta is many times its body, unpacked: those that wait are bodies

    @router.get("")
    async def show(model: str, version: str = "") -> dict[str, Any]:
        """Say how many deltas are in force, the last of them, and which tables there are."""
        return _shown(engine.updates(model, version), "" if writable else _OFF)

    @router.post("")
    async def apply(model: str, request: Request, version: str = "") -> dict[str, Any]:
        """Replace rows: Arrow IPC, Parquet or JSON."""
        _allow(writable)
        is_json = _is_json(request.headers.get("content-type", ""))
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
        raise ServingError(Code.UNSUPPORTED, _OFF)


def _check_query(request: Request) -> None:
    for name in request.query_params:
        if name not in _QUERY:
            raise invalid(f"unknown query parameter {shown(name)}; known: {', '.join(_QUERY)}")


def _is_json(content_type: str) -> bool:
    """Return whether a delta says that it is JSON; else its first bytes say what it is.

    Raises HttpError for a form: so curl calls what it is told no type of.
    """
    name = content_type.partition(";")[0].strip().lower()
    if name == _FORM:
        raise HttpError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"content-type: {name} is no delta; send {_TYPES}"
        )
    return name == JSON


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
