"""The HTTP/1.1 transport: plain or in TLS on TCP, plain on a Unix domain socket."""

import contextlib
import socket
import ssl
from dataclasses import dataclass, field

from scheduler.engine import Engine
from transports.endpoint import EndpointOptions
from transports.http.app import HttpApp
from transports.http.cors import allow_origins, check_origins
from transports.http.intake import BodyLimits, Intake
from transports.http.listener import Listener, ListenerOptions
from transports.http.ranges import COUNTS, PORTS, SECONDS, Range, check_range
from transports.http.sockets import bind, port_of, reserve, url
from transports.http.standing import CLOSE, StandingHeaders
from transports.http.unsent import Unsent
from transports.sharing import Reserved, Share
from transports.tls import RenewedContext
from transports.unix import ClaimedPath, listening_socket

ALPN = ["http/1.1"]
CLIENT_CERTIFICATES = {"required": ssl.CERT_REQUIRED, "optional": ssl.CERT_OPTIONAL}


@dataclass(frozen=True, slots=True)
class HttpOptions(BodyLimits, EndpointOptions):
    """Serve HTTP/1.1."""

    host: str = field(
        default="127.0.0.1",
        metadata={"help": "address to listen on; empty: only unix_path, no TCP"},
    )
    port: int = field(default=8000, metadata={"help": "TCP port; 0: any free one"})
    client_certificates: str = field(
        default="required",
        metadata={"help": "with client_ca: required, or optional (only a false one is refused)"},
    )
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
    metrics: bool = field(
        default=False, metadata={"help": "serve /metrics to clients, too, not to operators alone"}
    )
    cors_origins: tuple[str, ...] = field(
        default=(), metadata={"help": "origins whose pages may call; *: any"}
    )

    def __post_init__(self) -> None:
        """Refuse what could not work. Raises ValueError."""
        check_range("port", self.port, PORTS)
        self.check_endpoint(self.host)
        if self.client_certificates not in CLIENT_CERTIFICATES:
            known = " or ".join(CLIENT_CERTIFICATES)
            raise ValueError(
                f"client_certificates must be {known}, got {self.client_certificates!r}"
            )
        self.check_limits()
        check_range("head_timeout_s", self.head_timeout_s, SECONDS)
        check_range("keep_alive_s", self.keep_alive_s, Range(0, SECONDS.greatest))
        check_range("write_timeout_s", self.write_timeout_s, SECONDS)
        check_range("backlog", self.backlog, COUNTS)
        check_origins("cors_origins", self.cors_origins)


class HttpTransport:
    """Serve ``HttpApp``."""

    Options = HttpOptions

    def __init__(self, options: HttpOptions) -> None:
        self.share: Share | None = None
        self._options = options
        self._intake = Intake(options)
        self._unix = options.unix_address
        self._listener: Listener | None = None

    async def reserve(self, count: int) -> Reserved:
        """Hold the port, and the path, for so many processes. Raises OSError: one is taken."""
        options = self._options
        with contextlib.ExitStack() as undo:
            held = []
            if options.host:
                held.append(reserve(options.host, options.port, socket.SOCK_STREAM))
                undo.callback(held[0].close)
            unix = ClaimedPath(self._unix, options.backlog) if self._unix else None
            undo.pop_all()
        return Reserved(port_of(held[0]) if held else 0, count, held, unix=unix)

    async def start(self, engine: Engine) -> tuple[str, ...]:
        """Listen; return the URLs with the real port.

        Raises OSError that names a taken port or path, or an unusable file.
        """
        options = self._options
        tls = self._tls()
        with contextlib.ExitStack() as undo:
            bound = self._bind()
            for taken in bound:
                undo.callback(taken.close)
            if self.share is not None:
                bound += filter(None, [self.share.unix_socket])
            elif self._unix is not None:
                bound.append(self._unix.claim(lambda path: listening_socket(path, options.backlog)))
            undo.pop_all()
        self._listener = self._new_listener(engine)
        for each in bound:
            await self._listener.start(each, None if each.family == socket.AF_UNIX else tls)
        return tuple(self._url(each) for each in bound)

    async def stop(self, grace_s: float) -> None:
        """Take nothing more, answer what is under way within ``grace_s`` seconds or with 503."""
        self._intake.close()
        if self._unix is not None:
            self._unix.release()
        if self._listener is not None:
            await self._listener.stop(grace_s)

    def _tls(self) -> ssl.SSLContext | None:
        files = self._options.tls_files
        if files is None:
            return None
        return RenewedContext.of(
            files, ALPN, CLIENT_CERTIFICATES[self._options.client_certificates]
        )

    def _bind(self) -> list[socket.socket]:
        options, share = self._options, self.share
        if not options.host:
            return []
        if share is not None:
            return [bind(options.host, share.port, socket.SOCK_STREAM, shared=True)]
        return [bind(options.host, options.port, socket.SOCK_STREAM)]

    def _new_listener(self, engine: Engine) -> Listener:
        options = self._options
        bounds = ListenerOptions(
            options.keep_alive_s, options.head_timeout_s, options.write_timeout_s,
            options.backlog, options.max_connections,
        )  # fmt: skip
        headers = StandingHeaders(draining=[CLOSE])
        headers.follow(engine)
        plain = HttpApp(engine, self._intake, metrics=options.metrics)
        app = allow_origins(plain, options.cors_origins)
        unsent = Unsent(options.max_unsent_bytes)
        return Listener(app, bounds, unsent, headers, plain.inference)

    def _url(self, bound: socket.socket) -> str:
        if bound.family == socket.AF_UNIX and self._unix is not None:
            return self._unix.url
        scheme = "https" if self._options.certificate else "http"
        return url(scheme, self._options.host, port_of(bound))
