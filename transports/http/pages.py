"""Everything over HTTP but predict: probes, metrics, model descriptions, documentation."""

from collections.abc import Callable
from dataclasses import asdict
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scheduler.engine import Engine
from scheduler.errors import Code, ServingError
from scheduler.types import ModelSpec, TensorSpec
from transports.codecs.strict_json import shown
from transports.http.head import own_id
from transports.http.oip_openapi import infer_paths
from transports.http.oip_pages import add_unserved_pages, oip_pages
from transports.http.openapi import Schema, predict_paths, with_refusals
from transports.http.problem import (
    MEDIA_TYPE,
    HttpError,
    Problem,
    problem_of,
    status_problem,
    unexpected_problem,
)


def pages(engine: Engine, *, metrics: bool = False) -> FastAPI:
    """Return the app; its documentation pages load nothing from the internet."""
    app = FastAPIOffline(title="Narsil", version=version("narsil"), redirect_slashes=False)
    _add_probes(app, engine)
    _add_models(app, engine)
    if metrics:
        _add_metrics(app, engine)
    app.include_router(oip_pages(engine))
    add_unserved_pages(app)
    _answer_errors_with_problems(app)
    app.add_middleware(_EveryPage)
    document(app, with_refusals)
    return app


async def unexpected_error(request: Request, error: Exception) -> Response:
    """Answer a bug of ours; the caller logs ``error``."""
    del error
    return _response(request, unexpected_problem())


class _EveryPage:
    """Name each answer by its request's id, and answer HEAD, which FastAPI's routes do not know.

    It is GET, and the servers leave its body out.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        name = (b"x-request-id", own_id(dict(scope["headers"])).encode())

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [pair for pair in message["headers"] if pair[0] != name[0]]
                message = {**message, "headers": [*headers, name]}
            await send(message)

        await self._app(scope, receive, send_named)


def _add_probes(app: FastAPI, engine: Engine) -> None:
    @app.get("/livez", tags=["probes"])
    async def live() -> dict[str, bool]:
        """Say whether a restart would not help."""
        return _state("live", engine.live)

    @app.get("/readyz", tags=["probes"])
    # Load balancers ask the older names, and mean: would a request be answered?
    @app.get("/healthz", include_in_schema=False)
    @app.get("/ping", include_in_schema=False)
    async def ready() -> dict[str, bool]:
        """Say whether new requests are welcome."""
        return _state("ready", engine.ready)

    @app.get("/startupz", tags=["probes"])
    async def started() -> dict[str, bool]:
        """Say whether every model has been loaded once."""
        return _state("started", engine.started)


def _add_models(app: FastAPI, engine: Engine) -> None:
    @app.get("/v1/models", tags=["models"])
    async def models() -> dict[str, Any]:
        """Describe the models being served, and say what is refused and why."""
        return {
            "models": [_describe(spec) for spec in engine.specs()],
            "refused": [asdict(one) for one in engine.refused],
        }

    @app.get("/v1/models/{model}", tags=["models"])
    @app.get("/v1/models/{model}/versions/{version}", tags=["models"])
    async def model(model: str, version: str = "") -> dict[str, Any]:
        """Describe one model, or a version of it, which may be named by a label."""
        return _describe(engine.spec(model, version))


def _add_metrics(app: FastAPI, engine: Engine) -> None:
    @app.get("/metrics", tags=["probes"], response_class=Response)
    async def metrics(request: Request) -> Response:
        """Return every metric in Prometheus' format."""
        body, media_type = await engine.observer.scraped(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": media_type})


def _answer_errors_with_problems(app: FastAPI) -> None:
    @app.exception_handler(ServingError)
    @app.exception_handler(HttpError)
    async def refused(request: Request, error: ServingError | HttpError) -> Response:
        return _response(request, problem_of(error))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        # Quotes would be noise; what they keep out, line breaks and such, stays out.
        method, path = (shown(one)[1:-1] for one in (request.method, request.scope["path"]))
        detail = f"{method} {path}: {_why(error)}"
        problem = status_problem(error.status_code, detail, error.headers)
        return _response(request, problem)

    @app.exception_handler(RequestValidationError)
    async def validation(request: Request, error: RequestValidationError) -> Response:
        return _response(request, status_problem(400, str(error)))

    app.exception_handler(Exception)(unexpected_error)


def _why(error: HTTPException) -> str:
    """Say what Starlette has but the status's name for."""
    if error.status_code == HTTPStatus.NOT_FOUND:
        return "there is no such path; /docs has them all"
    allowed = (error.headers or {}).get("Allow", "")
    return f"only {allowed} is taken here" if allowed else str(error.detail)


def document_inference(app: FastAPI, engine: Engine) -> None:
    """Add the inference paths, which ``app`` does not serve itself, to its OpenAPI document."""

    def with_inference(schema: Schema) -> Schema:
        specs = engine.specs()
        return schema | {"paths": {**predict_paths(specs), **infer_paths(specs), **schema["paths"]}}

    document(app, with_inference)


def document(app: FastAPI, change: Callable[[Schema], Schema]) -> None:
    """Pass the OpenAPI document of ``app`` through ``change`` too."""
    generate = app.openapi

    def openapi() -> Schema:
        # Not cached: the example follows the models being served, and pages are few.
        app.openapi_schema = None
        return change(generate())

    # FastAPI's own way of extending the document.
    app.openapi = openapi  # type: ignore[method-assign]


def _response(request: Request, problem: Problem) -> Response:
    name = own_id(dict(request.scope["headers"]))
    headers = {**problem.headers, "content-type": MEDIA_TYPE, "x-request-id": name}
    return Response(problem.body(request.url.path), problem.status, headers)


def _state(name: str, holds: bool) -> dict[str, bool]:
    if not holds:
        raise ServingError(Code.UNAVAILABLE, f"not {name}", retry_after_s=1.0)
    return {name: True}


def _describe(spec: ModelSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "version": spec.version,
        "max_batch_rows": spec.max_batch_rows,
        "max_request_rows": spec.max_request_rows,
        "inputs": [_describe_tensor(tensor) for tensor in spec.inputs],
        "outputs": [_describe_tensor(tensor) for tensor in spec.outputs],
        "properties": dict(spec.properties),
    }


def _describe_tensor(tensor: TensorSpec) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "dtype": str(tensor.dtype),
        "shape": list(tensor.shape),
        "labels": list(tensor.labels),
    }
