"""What the page loads: itself, what is going on, and what lies beside the models."""

from collections.abc import Mapping
from http import HTTPStatus
from importlib.metadata import version
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Query, Request, Response
from starlette.exceptions import HTTPException

from scheduler.companions import Companion
from scheduler.engine import Engine
from transports.http.page.assets import INDEX, Asset, assets
from transports.http.page.guard import check_host, check_sender
from transports.http.page.library import NAME as LIBRARY
from transports.http.page.library import Library

# Nothing but the page's own files runs, is shown or is asked, and no text becomes markup.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}
MAX_SECOND = 2**53


def page_routes(engine: Engine, listens_on: str) -> APIRouter:
    """Return the routes, for a listener on the address ``listens_on``."""

    def guarded(request: Request) -> None:
        headers = dict(request.scope["headers"])
        check_host(headers, listens_on)
        check_sender(headers)

    router = APIRouter(include_in_schema=False, dependencies=[Depends(guarded)])
    _add_library(router, Library())
    _add_files(router, assets())
    _add_figures(router, engine)
    _add_companions(router, engine)
    return router


def _add_files(router: APIRouter, known: Mapping[str, Asset]) -> None:
    @router.get("/")
    async def index(request: Request) -> Response:
        return _file(request, known[INDEX])

    @router.get("/page/{name}")
    async def file(request: Request, name: str) -> Response:
        if name not in known:
            raise HTTPException(HTTPStatus.NOT_FOUND)
        return _file(request, known[name])


def _add_library(router: APIRouter, library: Library) -> None:
    @router.get(f"/page/{LIBRARY}")
    async def charts(request: Request) -> Response:
        asked = request.headers.get("accept-encoding", "")
        return _file(request, await library.asset(asked.encode("latin-1")))


def _add_figures(router: APIRouter, engine: Engine) -> None:
    server = version("narsil")

    @router.get("/live")
    async def live(
        model: str = "", since: Annotated[int, Query(ge=0, le=MAX_SECOND)] = 0
    ) -> Response:
        return _json(
            {
                "server": server,
                "state": _state(engine),
                "serving": [[spec.name, spec.version] for spec in engine.specs()],
                **engine.observer.recent(model, since),
            }
        )


def _add_companions(router: APIRouter, engine: Engine) -> None:
    @router.get("/page/models/{model}/example")
    async def example(model: str) -> Response:
        return await _companion(engine, model, "example.json")

    @router.get("/page/models/{model}/catalogue")
    async def catalogue(model: str) -> Response:
        return await _companion(engine, model, "catalogue.json")


async def _companion(engine: Engine, model: str, name: Companion) -> Response:
    """Answer with what an artifact brought, whatever it is: it is data, never a document."""
    content = await engine.companions.read(model, name) if engine.companions else None
    if content is None:
        # No error, since most models have none.
        return Response(None, HTTPStatus.NO_CONTENT, _HEADERS)
    return Response(content, headers={**_HEADERS, "content-type": "application/json"})


def _state(engine: Engine) -> str:
    if engine.draining:
        return "draining"
    if not engine.started:
        return "starting"
    return "ready" if engine.ready else "not ready"


def _file(request: Request, asset: Asset) -> Response:
    headers = {**_HEADERS, "etag": asset.tag, "vary": "accept-encoding"}
    if request.headers.get("if-none-match") == asset.tag:
        return Response(None, HTTPStatus.NOT_MODIFIED, headers)
    if asset.coding:
        headers["content-encoding"] = asset.coding
    return Response(asset.body, headers={**headers, "content-type": asset.media_type})


def _json(document: Any) -> Response:
    headers = {**_HEADERS, "content-type": "application/json"}
    return Response(orjson.dumps(document), headers=headers)
