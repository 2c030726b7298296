"""The gRPC transport: one grpc.aio server on the running loop (uvloop or the default one)."""

import asyncio
from dataclasses import dataclass, field

import grpc

from scheduler.engine import Engine
from transports.endpoint import EndpointOptions
from transports.grpc import health, inference, predict, reflection
from transports.grpc.calls import Calls
from transports.grpc.credentials import server_credentials
from transports.grpc.listen import listen, listen_unix
from transports.grpc.management import Management

# How long new calls are held before the stop, for those on the wire to arrive.
_HOLD_S = 0.2

_INT_MAX = (1 << 31) - 1
# Room above the limit, where the handler refuses with a message that names the option; grpcio
# itself refuses what is larger still, before it is read.
_HEADROOM = 9 / 8


@dataclass(frozen=True, slots=True)
class GrpcOptions(EndpointOptions):
    """Where to listen and what to bound. With ``client_ca``, clients must show a certificate."""

    host: str = field(
        default="127.0.0.1",
        metadata={"help": "address to listen on; empty: only unix_path, no TCP"},
    )
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

    def __post_init__(self) -> None:
        """Refuse what grpcio would bend to something else in silence. Raises ValueError."""
        self._check("port", 0, 65535)
        self.check_endpoint(self.host)
        self._check("max_message_bytes", 1, int(_INT_MAX / _HEADROOM))
        self._check("max_concurrent_streams", 1, _INT_MAX)
        self._check("max_connection_age_s", 0, _INT_MAX // 1000)  # grpcio counts milliseconds

    def _check(self, name: str, least: int, most: int) -> None:
        value = getattr(self, name)
        if not least <= value <= most:  # nor is NaN
            raise ValueError(f"{name} must be {least} to {most}, got {value}")


@dataclass(frozen=True, slots=True)
class _Running:
    server: grpc.aio.Server
    calls: Calls
    inference: inference.InferenceService
    health: health.Health
    reflection: reflection.Reflection


class GrpcTransport:
    """Serve two inference protocols, TorchRec's and the open one, health and reflection."""

    Options = GrpcOptions

    def __init__(self, options: GrpcOptions) -> None:
        self._options = options
        self._running: _Running | None = None

    async def start(self, engine: Engine) -> tuple[str, ...]:
        """Listen and serve; return the addresses.

        Raises OSError for a taken port or path, or an unusable certificate.
        """
        options = self._options
        server = grpc.aio.server(options=_channel_arguments(options))
        addresses = await _listen(server, options)
        calls = Calls(engine, options.max_message_bytes)
        management = Management(engine)
        services = (predict.SERVICE, inference.SERVICE)
        running = _Running(
            server,
            calls,
            inference.InferenceService(engine, calls, management),
            health.Health(engine, services),
            reflection.Reflection((*services, health.SERVICE)),
        )
        server.add_generic_rpc_handlers(
            (
                predict.PredictService(engine, calls).method_handlers(),
                running.inference.method_handlers(),
                running.health.method_handlers(),
            )
        )
        if options.reflection:
            server.add_generic_rpc_handlers(tuple(running.reflection.method_handlers()))
        await server.start()
        self._running = running
        return addresses

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, let those under way finish for at most ``grace_s`` seconds, close.

        What reaches grpcio between its GOAWAY and the client's reading of it ends CANCELLED before
        a handler sees it. So new calls are first held for a moment: a client that waits for its
        answers then has nothing on the wire. They are refused (UNAVAILABLE) behind the GOAWAY.
        """
        if self._running is None:
            return
        running, hold_s = self._running, min(_HOLD_S, grace_s / 2)
        running.health.close()
        running.reflection.close()
        running.inference.close()
        running.calls.hold()
        await asyncio.sleep(hold_s)
        stopping = asyncio.create_task(running.server.stop(grace_s - hold_s))
        await asyncio.sleep(0)  # the task begins with the GOAWAY
        running.calls.close()
        await stopping


async def _listen(server: grpc.aio.Server, options: GrpcOptions) -> tuple[str, ...]:
    addresses = []
    if options.host:
        tls = server_credentials(options.tls_files) if options.tls_files else None
        addresses.append(await listen(server, options.host, options.port, tls))
    unix = options.unix_address
    if unix is not None:
        unix.claim(lambda path: listen_unix(server, path))
        addresses.append(unix.url)
    return tuple(addresses)


def _channel_arguments(options: GrpcOptions) -> list[tuple[str, int]]:
    arguments = [
        ("grpc.max_receive_message_length", int(options.max_message_bytes * _HEADROOM)),
        ("grpc.max_send_message_length", options.max_message_bytes),
        ("grpc.max_concurrent_streams", options.max_concurrent_streams),
        # Clients commonly ping idle connections every 10 s, now and then a little early; grpcio's
        # default, and exactly 10 s, cut them off for that at the fourth ping.
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
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
