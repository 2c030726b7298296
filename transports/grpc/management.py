"""The Open Inference Protocol's methods that are no inference: what is served, and how it fares."""

from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from scheduler.engine import Engine
from scheduler.errors import Code, ServingError
from transports import repository, shared_memory
from transports.codecs.oip_protobuf_model import config_message, metadata_message
from transports.grpc.memory import MemoryMethods
from transports.grpc.messages import unary
from transports.grpc.methods import Unary
from transports.grpc.statistics import statistics_message
from transports.proto import open_inference_pb2 as oip
from transports.statistics import specs_asked, statistics_of


class Management:
    """Answer for ``engine``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def methods(self) -> dict[str, Unary]:
        """Return the methods by name."""
        return {
            "ServerLive": unary(oip.ServerLiveRequest, self._server_live),
            "ServerReady": unary(oip.ServerReadyRequest, self._server_ready),
            "ModelReady": unary(oip.ModelReadyRequest, self._model_ready),
            "ServerMetadata": unary(oip.ServerMetadataRequest, self._server_metadata),
            "ModelMetadata": unary(oip.ModelMetadataRequest, self._model_metadata),
            "ModelConfig": unary(oip.ModelConfigRequest, self._model_config),
            "ModelStatistics": unary(oip.ModelStatisticsRequest, self._model_statistics),
            "RepositoryIndex": unary(oip.RepositoryIndexRequest, self._index),
            "RepositoryModelLoad": unary(oip.RepositoryModelLoadRequest, self._load),
            "RepositoryModelUnload": unary(oip.RepositoryModelUnloadRequest, self._unload),
            **MemoryMethods(self._engine).methods(),
        }

    async def _server_live(self, request: Any) -> Any:
        del request
        return oip.ServerLiveResponse(live=self._engine.live)

    async def _server_ready(self, request: Any) -> Any:
        del request
        return oip.ServerReadyResponse(ready=self._engine.ready)

    async def _model_ready(self, request: Any) -> Any:
        return oip.ModelReadyResponse(ready=self._is_ready(request.name, request.version))

    async def _server_metadata(self, request: Any) -> Any:
        del request
        return oip.ServerMetadataResponse(
            name="narsil", version=version("narsil"), extensions=self._extensions()
        )

    async def _model_metadata(self, request: Any) -> Any:
        spec = self._engine.spec(request.name, request.version)
        versions = [other.version for other in self._engine.specs() if other.name == spec.name]
        return metadata_message(spec, versions)

    async def _model_config(self, request: Any) -> Any:
        spec = self._engine.spec(request.name, request.version)
        return oip.ModelConfigResponse(config=config_message(spec))

    async def _model_statistics(self, request: Any) -> Any:
        statistics = statistics_of(self._engine)
        if statistics is None:
            raise ServingError(Code.UNSUPPORTED, "this server keeps no statistics")
        specs = specs_asked(self._engine, request.name, request.version)
        return oip.ModelStatisticsResponse(
            model_stats=[
                statistics_message(spec, statistics.of(spec.name, spec.version)) for spec in specs
            ]
        )

    async def _index(self, request: Any) -> Any:
        models = repository.index(self._engine, only_ready=request.ready)
        return oip.RepositoryIndexResponse(
            models=[oip.RepositoryIndexResponse.ModelIndex(**one._asdict()) for one in models]
        )

    async def _load(self, request: Any) -> Any:
        await repository.load(
            self._engine, request.model_name, request.repository_name, request.parameters
        )
        return oip.RepositoryModelLoadResponse()

    async def _unload(self, request: Any) -> Any:
        await repository.unload(self._engine, request.model_name, request.repository_name)
        return oip.RepositoryModelUnloadResponse()

    def _is_ready(self, name: str, version: str) -> bool:
        try:
            self._engine.spec(name, version)
        except ServingError:
            return False
        return self._engine.ready

    def _extensions(self) -> Iterator[str]:
        """Yield the names of Triton's extensions that are served in full."""
        yield "model_configuration"
        if self._engine.control is not None:
            yield repository.EXTENSION
        yield "schedule_policy"
        if statistics_of(self._engine) is not None:
            yield "statistics"
        if self._engine.regions is not None:
            yield shared_memory.EXTENSION
