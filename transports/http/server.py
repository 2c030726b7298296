"""The HTTP/1.1 transport."""

import socket
from dataclasses import dataclass, field

from scheduler.engine import Engine
from transports.http.app import HttpApp
from transports.http.body import BodyLimits
from transports.http.listener import ListenerOptions, TcpListener
from transports.http.sockets import bind, port_of, url


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Serve HTTP/1.1 without TLS."""

    host: str = field(default="127.0.0.1", metadata={"help": "address to listen on"})
    port: int = field(default=8000, metadata={"help": "TCP port; 0: any free one"})
    max_request_bytes: int = field(
        default=67_108_864, metadata={"help": "largest request body; more is answered with 413"}
    )
    body_timeout_s: float = field(
        default=60.0, metadata={"help": "seconds a body may take to arrive; then 408"}
    )
    head_timeout_s: float = field(
        default=30.0, metadata={"help": "seconds a connection may take to send a request's head"}
    )
    keep_alive_s: int = field(
        default=75, metadata={"help": "seconds an idle connection is kept between requests"}
    )
    backlog: int = field(
        default=2048, metadata={"help": "connections the kernel holds until they are accepted"}
    )


class HttpTransport:
    """Serve ``HttpApp`` with uvicorn's protocol."""

    Options = HttpOptions

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._listener: TcpListener | None = None

    async def start(self, engine: Engine) -> tuple[str, ...]:
        """Listen; return the URL with the real port. Raises OSError that names a taken port."""
        options = self._options
        limits = BodyLimits(options.max_request_bytes, options.body_timeout_s)
        bound = bind(options.host, options.port, socket.SOCK_STREAM)
        self._listener = TcpListener(
            HttpApp(engine, limits),
            ListenerOptions(options.keep_alive_s, options.head_timeout_s, options.backlog),
        )
        await self._listener.start(bound)
        return (url("http", options.host, port_of(bound)),)

    async def stop(self, grace_s: float) -> None:
        """Accept no more, answer what is under way within ``grace_s`` seconds, cut the rest."""
        if self._listener is not None:
            await self._listener.stop(grace_s)
