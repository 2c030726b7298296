"""The HTTP/1.1 transport."""

import socket
from dataclasses import dataclass, field

from scheduler.engine import Engine
from transports.http.app import HttpApp
from transports.http.cors import allow_origins, check_origins
from transports.http.intake import BodyLimits, Intake
from transports.http.listener import ListenerOptions, TcpListener
from transports.http.ranges import COUNTS, PORTS, SECONDS, Range, check_range
from transports.http.sockets import bind, port_of, url
from transports.http.unsent import Unsent


@dataclass(frozen=True, slots=True)
class HttpOptions(BodyLimits):
    """Serve HTTP/1.1 without TLS."""

    host: str = field(default="127.0.0.1", metadata={"help": "address to listen on"})
    port: int = field(default=8000, metadata={"help": "TCP port; 0: any free one"})
    head_timeout_s: float = field(
        default=30.0, metadata={"help": "seconds a connection may take to send a request's head"}
    )
    keep_alive_s: int = field(
        default=75, metadata={"help": "seconds an idle connection is kept between requests"}
    )
    write_timeout_s: float = field(
        default=60.0, metadata={"help": "seconds a client may take nothing of its answer"}
    )
    backlog: int = field(
        default=2048, metadata={"help": "connections the kernel holds until they are accepted"}
    )
    cors_origins: tuple[str, ...] = field(
        default=(), metadata={"help": "origins whose pages may call; *: any"}
    )

    def __post_init__(self) -> None:
        """Refuse what could not work. Raises ValueError."""
        check_range("port", self.port, PORTS)
        self.check_limits()
        check_range("head_timeout_s", self.head_timeout_s, SECONDS)
        check_range("keep_alive_s", self.keep_alive_s, Range(0, SECONDS.greatest))
        check_range("write_timeout_s", self.write_timeout_s, SECONDS)
        check_range("backlog", self.backlog, COUNTS)
        check_origins("cors_origins", self.cors_origins)


class HttpTransport:
    """Serve ``HttpApp`` with uvicorn's protocol."""

    Options = HttpOptions

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._intake = Intake(options)
        self._listener: TcpListener | None = None

    async def start(self, engine: Engine) -> tuple[str, ...]:
        """Listen; return the URL with the real port. Raises OSError that names a taken port."""
        options = self._options
        bound = bind(options.host, options.port, socket.SOCK_STREAM)
        self._listener = TcpListener(
            allow_origins(HttpApp(engine, self._intake), options.cors_origins),
            ListenerOptions(
                options.keep_alive_s,
                options.head_timeout_s,
                options.write_timeout_s,
                options.backlog,
            ),
            Unsent(options.max_unsent_bytes),
        )
        await self._listener.start(bound)
        return (url("http", options.host, port_of(bound)),)

    async def stop(self, grace_s: float) -> None:
        """Take nothing more, answer what is under way within ``grace_s`` seconds or with 503."""
        self._intake.close()
        if self._listener is not None:
            await self._listener.stop(grace_s)
