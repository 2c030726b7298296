"""The gRPC transport: the services, on one of two engines."""

from dataclasses import dataclass, replace

from scheduler.engine import Engine
from transports.base import HOLD_S
from transports.grpc import health, inference, predict, reflection
from transports.grpc.admission import Admission
from transports.grpc.calls import Calls
from transports.grpc.engine_grpcio import GrpcioServer
from transports.grpc.listen import reserved_path, reserved_sockets
from transports.grpc.management import Management
from transports.grpc.methods import Methods, awaited
from transports.grpc.nghttp2.server import Nghttp2Server
from transports.grpc.options import GrpcOptions
from transports.sharing import Reserved, Share


@dataclass(frozen=True, slots=True)
class _Services:
    calls: Calls
    predict: predict.PredictService
    inference: inference.InferenceService
    health: health.Health
    reflection: reflection.Reflection

    def close(self) -> None:
        """End the streams, which would otherwise hold up the stop."""
        self.health.close()
        self.reflection.close()
        self.inference.close()


class GrpcTransport:
    """Serve two inference protocols, TorchRec's and the open one, health and reflection."""

    Options = GrpcOptions

    def __init__(self, options: GrpcOptions) -> None:
        self.share: Share | None = None
        self._options = options
        self._services: _Services | None = None
        self._server: GrpcioServer | Nghttp2Server | None = None

    async def reserve(self, count: int) -> Reserved:
        """Hold the port, and the path, for so many processes. Raises OSError: one is taken."""
        options = self._options
        held = await reserved_sockets(options.host, options.port) if options.host else []
        try:
            unix = reserved_path(options)
        except OSError:
            for each in held:
                each.close()
            raise
        port: int = held[0].getsockname()[1] if held else 0
        return Reserved(port, count, held, unix=unix)

    async def start(self, engine: Engine) -> tuple[str, ...]:
        """Listen and serve; return the addresses.

        Raises OSError for a taken port or path, or an unusable certificate.
        """
        options, share = self._options, self.share
        if share is not None:
            options = replace(options, port=share.port)
        services = _services(engine, options)
        methods = _methods(services, options, engine)
        kind = Nghttp2Server if options.engine == "nghttp2" else GrpcioServer
        server = kind(options, methods, share)
        addresses = await server.start()
        self._services, self._server = services, server
        return addresses

    async def stop(self, grace_s: float) -> None:
        """Serve what is on the wire, let it finish for at most ``grace_s`` seconds, close.

        libnghttp2 says GOAWAY twice: calls sent before a client reads the first are served.
        What reaches grpcio between its only GOAWAY and the client's reading of it is lost: it ends
        it CANCELLED. So new calls are first held for a moment: a client that waits for its answers
        then has nothing on the wire. They are refused (UNAVAILABLE) behind the GOAWAY.
        """
        if self._services is None or self._server is None:
            return
        hold_s = min(HOLD_S, grace_s / 2)
        self._services.close()
        if self._options.engine == "grpcio":
            self._services.calls.hold()
        await self._server.stop(hold_s, grace_s - hold_s, self._services.calls.close)


def _services(engine: Engine, options: GrpcOptions) -> _Services:
    calls = Calls(engine, options.max_message_bytes, predict.MODEL_KEYS)
    management = Management(engine)
    names = (predict.SERVICE, inference.SERVICE)
    return _Services(
        calls,
        predict.PredictService(engine, calls),
        inference.InferenceService(engine, calls, management),
        health.Health(engine, names),
        reflection.Reflection((*names, health.SERVICE)),
    )


def _methods(services: _Services, options: GrpcOptions, engine: Engine) -> Methods:
    streams = {**services.inference.streams(), **services.health.streams()}
    if options.reflection:
        streams.update(services.reflection.streams())
    direct = {**services.predict.direct(), **services.inference.direct()}
    unary = {
        **{path: awaited(method) for path, method in direct.items()},
        **services.inference.unary(),
        **services.health.unary(),
    }
    admit = Admission(engine, frozenset(streams))
    return Methods(unary, streams, services.calls.refused, admit, direct)
