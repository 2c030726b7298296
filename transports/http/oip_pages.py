"""The Open Inference Protocol's pages: health, metadata, configuration, statistics, the index."""

from collections.abc import Iterator
from importlib.metadata import version

from fastapi import APIRouter, FastAPI, Request, Response

from scheduler.engine import Engine
from scheduler.errors import Code, ServingError, invalid
from transports import repository, shared_memory
from transports.codecs.strict_json import shown
from transports.http import oip_models
from transports.http.intake import Intake
from transports.http.oip_body import PAGE_BODY, Document, document_in
from transports.http.oip_memory import add_shared_memory
from transports.statistics import statistics_of

# Of Triton's extensions, those that are served. Clients ask for the rest only if it is named.
EXTENSIONS = ("binary_tensor_data", "model_configuration", "schedule_policy")
STATISTICS = "statistics"

_UNSERVED = {
    "GET": (
        "/v2/models/{model}/trace/setting",
        "/v2/trace/setting",
        "/v2/logging",
    ),
    "POST": (
        "/v2/models/{model}/generate",
        "/v2/models/{model}/generate_stream",
        "/v2/models/{model}/versions/{version}/generate",
        "/v2/models/{model}/versions/{version}/generate_stream",
        "/v2/models/{model}/trace/setting",
        "/v2/repository/{repository}/models/{model}/load",
        "/v2/repository/{repository}/models/{model}/unload",
        "/v2/trace/setting",
        "/v2/logging",
    ),
}


def oip_pages(engine: Engine) -> APIRouter:
    """Return the routes under ``/v2``, but for infer."""
    router = APIRouter(prefix="/v2", tags=["open inference protocol"])
    _add_server(router, engine)
    _add_statistics(router, engine)  # first: "stats" would be a model's name
    _add_models(router, engine)
    _add_repository(router, engine)
    add_shared_memory(router, engine)
    return router


def add_unserved_pages(app: FastAPI) -> None:
    """Let ``app`` say of Triton's other extensions that they are not served."""

    async def unserved(request: Request) -> Response:
        asked = f"{request.method} {shown(request.scope['path'])}"
        raise ServingError(Code.UNSUPPORTED, f"{asked} is not served here")

    for method, paths in _UNSERVED.items():
        for path in paths:
            app.add_route(path, unserved, methods=[method], include_in_schema=False)


def _add_server(router: APIRouter, engine: Engine) -> None:
    @router.get("")
    async def server() -> Document:
        """Describe the server and the extensions it serves."""
        extensions = sorted([*EXTENSIONS, *_optional_extensions(engine)])
        return {"name": "narsil", "version": version("narsil"), "extensions": extensions}

    @router.get("/health/live")
    async def live() -> Document:
        """Say whether a restart would not help."""
        if not engine.live:
            raise ServingError(Code.UNAVAILABLE, "not live", retry_after_s=1.0)
        return {"live": True}

    @router.get("/health/ready")
    async def ready() -> Document:
        """Say whether new requests are welcome."""
        _check_ready(engine)
        # The specification's sample of this page says live.
        return {"ready": True, "live": True}


def _optional_extensions(engine: Engine) -> Iterator[str]:
    if statistics_of(engine) is not None:
        yield STATISTICS
    if engine.control is not None:
        yield repository.EXTENSION
    if engine.regions is not None:
        yield shared_memory.EXTENSION


def _add_models(router: APIRouter, engine: Engine) -> None:
    @router.get("/models/{model}")
    @router.get("/models/{model}/versions/{version}")
    async def metadata(model: str, version: str = "") -> Document:
        """Describe the model's tensors; -1 stands for any size."""
        return oip_models.metadata(engine, model, version)

    @router.get("/models/{model}/ready")
    @router.get("/models/{model}/versions/{version}/ready")
    async def ready(model: str, version: str = "") -> Document:
        """Say whether requests for the model are welcome."""
        spec = engine.spec(model, version)
        _check_ready(engine)
        return {"name": spec.name, "ready": True}

    @router.get("/models/{model}/config")
    @router.get("/models/{model}/versions/{version}/config")
    async def config(model: str, version: str = "") -> Document:
        """Describe the model as Triton's configuration does."""
        return oip_models.config(engine, model, version)


def _add_statistics(router: APIRouter, engine: Engine) -> None:
    @router.get("/models/{model}/stats")
    @router.get("/models/{model}/versions/{version}/stats")
    async def statistics(model: str, version: str = "") -> Document:
        """Report what has been counted for the model, version by version."""
        return oip_models.statistics(engine, model, version)

    @router.get("/models/stats")
    async def all_statistics() -> Document:
        """Report what has been counted for every model."""
        return oip_models.statistics(engine)


def _add_repository(router: APIRouter, engine: Engine) -> None:
    intake = Intake(PAGE_BODY)

    @router.post("/repository/index")
    async def index(request: Request) -> list[Document]:
        """List the models; with `{"ready": true}` only those that are ready."""
        document = await document_in(request, intake)
        models = repository.index(engine, only_ready=document.get("ready") is True)
        return [model._asdict() for model in models]

    @router.post("/repository/models/{model}/load")
    async def load(model: str, request: Request) -> Document:
        """Load the model's files anew, if `server.model_control` lets clients do that."""
        parameters = (await document_in(request, intake)).get("parameters", {})
        if not isinstance(parameters, dict):
            raise invalid(f"parameters is {shown(parameters)}, expected an object")
        await repository.load(engine, model, "", parameters)
        return {}

    @router.post("/repository/models/{model}/unload")
    async def unload(model: str, request: Request) -> Document:
        """Serve the model no longer, if `server.model_control` lets clients do that."""
        await document_in(request, intake)
        await repository.unload(engine, model, "")
        return {}


def _check_ready(engine: Engine) -> None:
    if not engine.ready:
        raise ServingError(Code.UNAVAILABLE, "not ready", retry_after_s=1.0)
