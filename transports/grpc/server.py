"""The gRPC transport: one grpc.aio server on the running loop (uvloop or the default one)."""

from dataclasses import dataclass, field

import grpc

from scheduler.engine import Engine
from transports.grpc import health, predict, reflection
from transports.grpc.listen import listen


@dataclass(frozen=True, slots=True)
class GrpcOptions:
    """Where to listen and what to bound."""

    host: str = field(default="127.0.0.1", metadata={"help": "address to listen on"})
    port: int = field(default=50051, metadata={"help": "TCP port; 0 takes a free one"})
    max_message_bytes: int = field(
        default=64 << 20, metadata={"help": "largest request and answer, in bytes"}
    )
    max_concurrent_streams: int = field(
        default=1024, metadata={"help": "calls one connection may have open at once"}
    )
    max_connection_age_s: float = field(
        default=0.0,
        metadata={
            "help": "seconds after which clients are told to reconnect, so that a level 4 load "
            "balancer can spread them; 0 never"
        },
    )
    reflection: bool = field(
        default=True, metadata={"help": "describe the services to clients such as grpcurl"}
    )


class GrpcTransport:
    """Serve ``predictor.Predictor``, ``grpc.health.v1.Health`` and reflection."""

    Options = GrpcOptions

    def __init__(self, options: GrpcOptions) -> None:
        self._options = options
        self._server: grpc.aio.Server | None = None
        self._health: health.Health | None = None

    async def start(self, engine: Engine) -> tuple[str, ...]:
        """Listen and serve; return the address. Raises OSError if the port is taken."""
        options = self._options
        server = grpc.aio.server(options=_channel_arguments(options))
        address = await listen(server, options.host, options.port)
        self._health = health.Health(engine)
        server.add_generic_rpc_handlers(
            (
                predict.PredictHandler(engine, options.max_message_bytes).method_handlers(),
                self._health.method_handlers(),
            )
        )
        if options.reflection:
            server.add_generic_rpc_handlers(
                tuple(reflection.method_handlers((predict.SERVICE, health.SERVICE)))
            )
        await server.start()
        self._server = server
        return (f"grpc://{address}",)

    async def stop(self, grace_s: float) -> None:
        """Send GOAWAY, let calls under way finish for at most ``grace_s`` seconds, close.

        A call that crosses the GOAWAY on the wire ends UNAVAILABLE or, about once in a hundred,
        CANCELLED: grpcio's own answer, given before a handler sees the call.
        """
        if self._health is not None:
            self._health.close()
        if self._server is not None:
            await self._server.stop(grace_s)


def _channel_arguments(options: GrpcOptions) -> list[tuple[str, int]]:
    arguments = [
        # Room above the limit, where the handler refuses with a message that names the option;
        # grpcio itself refuses what is larger still, before it is read.
        ("grpc.max_receive_message_length", min(options.max_message_bytes * 9 // 8, (1 << 31) - 1)),
        ("grpc.max_send_message_length", options.max_message_bytes),
        ("grpc.max_concurrent_streams", options.max_concurrent_streams),
        # Clients may ping idle connections every 10 s; grpcio's default drops them for that.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # On Linux grpcio shares ports by default: two servers would split the clients unnoticed.
        ("grpc.so_reuseport", 0),
    ]
    if options.max_connection_age_s:
        age_ms = round(options.max_connection_age_s * 1000)
        arguments += [
            ("grpc.max_connection_age_ms", age_ms),
            ("grpc.max_connection_age_grace_ms", age_ms),
        ]
    return arguments
