"""The HTTP/3 transport: QUIC on a UDP port, and HTTPS on the TCP port of the same number."""

import asyncio
import datetime
import errno
import logging
import socket
from dataclasses import dataclass, field
from pathlib import Path

from aioquic.quic.configuration import QuicConfiguration
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from starlette.types import ASGIApp

from scheduler.engine import Engine
from transports.endpoint import check_pair
from transports.http.app import HttpApp
from transports.http.cors import allow_origins, check_origins
from transports.http.inference import Inference
from transports.http.intake import BodyLimits, Intake
from transports.http.listener import Listener, ListenerOptions
from transports.http.ranges import COUNTS, PORTS, SECONDS, check_range
from transports.http.server import ALPN
from transports.http.sockets import bind, port_of, reserve, url
from transports.http.standing import ALT_SVC_CLEAR, CLOSE, StandingHeaders
from transports.http.unsent import Unsent
from transports.http3.certificate import development_certificate
from transports.http3.connection import Host
from transports.http3.endpoint import QuicEndpoint
from transports.http3.steering import Steering, steered_sockets
from transports.sharing import Reserved, Share
from transports.tls import Identity, Renewed, RenewedContext, TlsFiles

# aioquic starts with windows of 1 MiB and doubles one when half of it is used. From here a
# 64 MiB body waits for no window, whatever the round trip.
STREAM_WINDOW_BYTES = 16 * 1024 * 1024
CONNECTION_WINDOW_BYTES = 64 * 1024 * 1024
# With port 0: how often the free UDP port found may turn out to be taken on TCP.
PORT_ATTEMPTS = 16

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Http3Options(BodyLimits):
    """Serve HTTP/3, and HTTPS beside it."""

    host: str = field(default="127.0.0.1", metadata={"help": "address to listen on"})
    port: int = field(default=8443, metadata={"help": "UDP port, and TCP port; 0: any free one"})
    certificate: str = field(
        default="", metadata={"help": "PEM file; empty: one for development is made"}
    )
    private_key: str = field(default="", metadata={"help": "PEM file of the certificate's key"})
    certificate_dir: str = field(
        default=".narsil/tls", metadata={"help": "folder of the certificate for development"}
    )
    tcp: bool = field(
        default=True, metadata={"help": "serve HTTPS too, which tells browsers of HTTP/3"}
    )
    without_client_certificates: bool = field(
        default=False,
        metadata={"help": "serve although others ask for client certificates; this one cannot"},
    )
    idle_timeout_s: float = field(
        default=60.0, metadata={"help": "seconds a silent QUIC connection is kept"}
    )
    max_connections: int = field(
        default=1024, metadata={"help": "connections at once, over QUIC and over TCP each"}
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
        self.check_limits()
        check_range("idle_timeout_s", self.idle_timeout_s, SECONDS)
        check_range("max_connections", self.max_connections, COUNTS)
        check_origins("cors_origins", self.cors_origins)
        check_pair(self.certificate, self.private_key)


class Http3Transport:
    """Serve ``HttpApp`` over aioquic; ``certificate`` and ``port`` are set once started."""

    Options = Http3Options

    def __init__(self, options: Http3Options) -> None:
        self.share: Share | None = None
        self.certificate: Identity | None = None
        self.port = options.port
        self._options = options
        self._intake = Intake(options)
        self._endpoint: QuicEndpoint | None = None
        self._listener: Listener | None = None
        self._headers = StandingHeaders(draining=[ALT_SVC_CLEAR])
        self._unsent = Unsent(options.max_unsent_bytes)

    async def reserve(self, count: int) -> Reserved:
        """Hold the port for so many processes, and make the certificate that they share.

        Raises OSError: the port is taken, or the certificate of no use.
        """
        options = self._options
        self._files()
        udp, steered, tcp = _reserve_pair(options, count)
        if not steered:
            logger.warning(
                "http3: this kernel cannot steer datagrams by connection id"
                " (SO_ATTACH_REUSEPORT_CBPF): one front end of %d has all QUIC connections", count
            )  # fmt: skip
        return Reserved(port_of(udp[0]), count, tcp, udp)

    async def start(self, engine: Engine) -> tuple[str, ...]:
        """Listen; return the URL, the same for QUIC and TCP.

        Raises OSError for a taken port or an unusable certificate.
        """
        options = self._options
        configuration = Renewed(
            self._files(), lambda identity: _quic_configuration(options, identity)
        )
        self.certificate = configuration.identity
        if not options.certificate and not (self.share and self.share.number):
            logger.info(
                "development certificate %s, SPKI SHA-256 %s (for Chromium's"
                " --ignore-certificate-errors-spki-list)",
                self.certificate.path, self.certificate.spki_sha256,
            )  # fmt: skip
        udp, tcp, self.port = _ports(options, self.share)
        plain = HttpApp(engine, self._intake, metrics=options.metrics)
        app = allow_origins(plain, options.cors_origins)
        self._headers.start()
        self._headers.follow(engine)
        self._endpoint = QuicEndpoint(
            Host(app, (options.host, self.port), self._headers.current, self._unsent),
            configuration,
            options.max_connections,
            Steering(self.share.number, self.share.of) if self.share else Steering(),
        )
        if udp is not None:
            self._endpoint.start(udp)
        if tcp is not None:
            await self._start_tcp(engine, app, plain.inference, tcp)
        return (url("https", options.host, self.port),)

    async def stop(self, grace_s: float) -> None:
        """Take nothing more, answer what is under way within ``grace_s`` seconds or with 503."""
        self._intake.close()
        servers = [server for server in (self._endpoint, self._listener) if server is not None]
        await asyncio.gather(*(server.stop(grace_s) for server in servers))
        self._headers.stop()

    async def _start_tcp(
        self, engine: Engine, app: ASGIApp, inference: Inference, bound: socket.socket
    ) -> None:
        context = RenewedContext.of(self._files(), ALPN)
        alternative = (b"alt-svc", b'h3=":%d"; ma=86400' % self.port)
        headers = StandingHeaders([alternative], draining=[ALT_SVC_CLEAR, CLOSE])
        headers.follow(engine)
        bounds = ListenerOptions(max_connections=self._options.max_connections)
        self._listener = Listener(app, bounds, self._unsent, headers, inference)
        await self._listener.start(bound, context)

    def _files(self) -> TlsFiles:
        options = self._options
        if options.certificate:
            return TlsFiles(Path(options.certificate), Path(options.private_key))
        now = datetime.datetime.now(datetime.UTC)
        return development_certificate(Path(options.certificate_dir), now)


def _quic_configuration(options: Http3Options, identity: Identity) -> QuicConfiguration:
    configuration = QuicConfiguration(
        alpn_protocols=["h3"],
        idle_timeout=options.idle_timeout_s,
        is_client=False,
        max_data=CONNECTION_WINDOW_BYTES,
        max_stream_data=STREAM_WINDOW_BYTES,
    )
    # What was checked, not the files once more: they may be others by now.
    chain = x509.load_pem_x509_certificates(identity.chain_pem)
    configuration.certificate, configuration.certificate_chain = chain[0], chain[1:]
    configuration.private_key = load_pem_private_key(identity.key_pem, None)
    return configuration


def _bind_pair(options: Http3Options) -> tuple[socket.socket, socket.socket | None]:
    """Return a UDP socket and, if wanted, a TCP socket of the same number. Raises OSError."""
    for _ in range(1 if options.port else PORT_ATTEMPTS):
        udp = bind(options.host, options.port, socket.SOCK_DGRAM)
        if not options.tcp:
            return udp, None
        try:
            return udp, bind(options.host, port_of(udp), socket.SOCK_STREAM)
        except OSError as error:
            udp.close()
            if options.port or error.errno != errno.EADDRINUSE:
                raise
    raise _no_port(options)


def _reserve_pair(
    options: Http3Options, count: int
) -> tuple[list[socket.socket], bool, list[socket.socket]]:
    """Return UDP sockets for so many processes, whether they are steered, and what holds TCP.

    Raises OSError.
    """
    for _ in range(1 if options.port else PORT_ATTEMPTS):
        udp, steered = steered_sockets(options.host, options.port, count)
        if not options.tcp:
            return udp, steered, []
        try:
            return udp, steered, [reserve(options.host, port_of(udp[0]), socket.SOCK_STREAM)]
        except OSError as error:
            for each in udp:
                each.close()
            if options.port or error.errno != errno.EADDRINUSE:
                raise
    raise _no_port(options)


def _ports(
    options: Http3Options, share: Share | None
) -> tuple[socket.socket | None, socket.socket | None, int]:
    """Return the UDP socket, the TCP socket, either of which may be none, and the port.

    One process of several has inherited its UDP socket. Raises OSError.
    """
    if share is None:
        own_udp, own_tcp = _bind_pair(options)
        return own_udp, own_tcp, port_of(own_udp)
    udp = socket.socket(fileno=share.udp) if share.udp >= 0 else None
    if not options.tcp:
        return udp, None, share.port
    return udp, bind(options.host, share.port, socket.SOCK_STREAM, shared=True), share.port


def _no_port(options: Http3Options) -> OSError:
    return OSError(errno.EADDRINUSE, f"no port is free for both UDP and TCP on {options.host}")
