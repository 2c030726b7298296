"""Serve one ASGI app over HTTP/1.1, plain or in TLS, on TCP and Unix domain sockets.

With our own protocol on our loop, and uvicorn's cycle for pages.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass

from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.server import ServerState

from scheduler.errors import Code, ServingError
from transports.http.inference import Inference
from transports.http.protocol import HttpProtocol
from transports.http.refusal import Full
from transports.http.standing import StandingHeaders
from transports.http.unsent import Unsent

# After the grace: how long the last answers, which say so, may take to leave.
FLUSH_S = 1.0
# How long a connection that came as the listener closed may take to begin its only request.
LATE_S = 1.0


@dataclass(frozen=True, slots=True)
class ListenerOptions:
    """Bound connections: idle ones, ones that send no request or read no answer, new ones."""

    keep_alive_s: int = 75
    head_timeout_s: float = 30.0
    write_timeout_s: float = 60.0
    backlog: int = 2048
    max_connections: int = 16_384


class Listener:
    """HTTP/1.1 without uvicorn's server, which takes signals and polls ten times a second.

    Requests for scores go to ``inference``, if there is one, with no ASGI between.
    """

    def __init__(
        self,
        app: ASGIApp,
        options: ListenerOptions,
        unsent: Unsent,
        headers: StandingHeaders | None = None,
        inference: Inference | None = None,
    ) -> None:
        self._options = options
        self._inference = inference
        self._unsent = unsent
        self._headers = headers or StandingHeaders()
        self._config = _config(app, options)
        self._state = ServerState()
        self._all_closed = asyncio.Event()
        self._servers: list[asyncio.AbstractServer] = []
        self._bound: list[tuple[socket.socket, ssl.SSLContext | None]] = []

    async def start(self, bound: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Serve on ``bound``, which is the listener's from here on; once for each socket."""
        if not self._servers:
            self._config.load()
            self._headers.start()
            self._state.default_headers = self._headers.current
        loop, backlog = asyncio.get_running_loop(), self._options.backlog
        if bound.family == socket.AF_UNIX:
            server = await loop.create_unix_server(self._protocol, sock=bound, backlog=backlog)
        else:
            # The kernel's own clock for what a client does not take, inherited by each
            # connection: it runs in every state of ours, and under TLS too.
            write_timeout_ms = round(self._options.write_timeout_s * 1000)
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, write_timeout_ms)
            # A handshake may take what a head may: until it is done there is no protocol of ours.
            timeout_s = self._options.head_timeout_s if tls else None
            server = await loop.create_server(
                self._protocol,
                sock=bound,
                ssl=tls,
                ssl_handshake_timeout=timeout_s,
                backlog=backlog,
            )
            self._bound.append((bound, tls))
        self._servers.append(server)

    async def stop(self, grace_s: float) -> None:
        """Accept no more, finish what is under way within ``grace_s`` s, refuse the rest."""
        if not self._servers:
            return
        await self._accept_no_more(min(LATE_S, grace_s))
        await self._wait_closed_for(grace_s)
        for connection in self._connections():
            connection.cut(grace_over())
        await self._wait_closed_for(FLUSH_S)
        for connection in self._connections():
            connection.transport.abort()
        await self._wait_closed()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks)
        self._headers.stop()

    async def _accept_no_more(self, within_s: float) -> None:
        """Close the listener, and every connection after the request that it has, or begins."""
        late = [*self._waiting()] if within_s > 0 else []
        for server in self._servers:
            server.close()
        for _ in range(2):  # turns of the loop: what has arrived by now is read
            await asyncio.sleep(0)
        for connection in self._connections():
            if connection.fresh:
                connection.last(within_s)
            else:
                connection.shutdown()
        await asyncio.gather(*(self._take(taken, tls, within_s) for taken, tls in late))

    def _waiting(self) -> Iterator[tuple[socket.socket, ssl.SSLContext | None]]:
        """Accept what the kernel holds; closed with the listener, it would be reset.

        Not of a Unix domain socket, which other processes may go on to accept from.
        """
        for bound, tls in self._bound:
            with contextlib.suppress(OSError):  # nothing is left
                for _ in range(self._options.backlog):
                    yield bound.accept()[0], tls

    async def _take(
        self, taken: socket.socket, tls: ssl.SSLContext | None, within_s: float
    ) -> None:
        """Serve one request on a connection that came at the end."""
        taken.setblocking(False)
        timeout_s = within_s if tls else None
        with contextlib.suppress(OSError):  # the client has left, or speaks no TLS
            _, protocol = await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol, taken, ssl=tls, ssl_handshake_timeout=timeout_s
            )
            if isinstance(protocol, HttpProtocol):
                protocol.last(within_s)

    def _connections(self) -> list[HttpProtocol]:
        return [c for c in self._state.connections if isinstance(c, HttpProtocol)]

    async def _wait_closed_for(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wait_closed()

    async def _wait_closed(self) -> None:
        while self._state.connections:
            self._all_closed.clear()
            await self._all_closed.wait()

    def _protocol(self) -> asyncio.Protocol:
        if len(self._state.connections) >= self._options.max_connections:
            return Full(self._options.max_connections, self._state.default_headers)
        return HttpProtocol(
            self._config,
            self._state,
            self._options.head_timeout_s,
            self._unsent,
            self._connection_lost,
            self._inference,
        )

    def _connection_lost(self) -> None:
        if not self._state.connections:
            self._all_closed.set()


def grace_over() -> ServingError:
    """Return the answer to a request that outlasts the grace."""
    return ServingError(Code.UNAVAILABLE, "the server stopped before there was an answer")


def _config(app: ASGIApp, options: ListenerOptions) -> Config:
    return Config(
        app,
        http=HttpProtocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=options.keep_alive_s,
        # Given, so that uvicorn reads no environment.
        workers=1,
        forwarded_allow_ips="",
    )
