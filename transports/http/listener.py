"""Serve one ASGI app over HTTP/1.1, plain or in TLS, with uvicorn's protocol on our loop."""

import asyncio
import contextlib
import socket
import ssl
from dataclasses import dataclass

from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.server import ServerState

from transports.http.protocol import HttpProtocol
from transports.http.standing import StandingHeaders


@dataclass(frozen=True, slots=True)
class ListenerOptions:
    """Bound connections: idle ones, ones that send no request, ones not yet accepted."""

    keep_alive_s: int = 75
    head_timeout_s: float = 30.0
    backlog: int = 2048


class TcpListener:
    """uvicorn's protocol without its server, which takes signals and polls ten times a second."""

    def __init__(
        self, app: ASGIApp, options: ListenerOptions, headers: StandingHeaders | None = None
    ) -> None:
        self._options = options
        self._headers = headers or StandingHeaders()
        self._config = _config(app, options)
        self._state = ServerState()
        self._all_closed = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def start(self, bound: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Serve on ``bound``, which is the listener's from here on."""
        self._config.load()
        self._headers.start()
        self._state.default_headers = self._headers.current
        self._server = await asyncio.get_running_loop().create_server(
            self._protocol, sock=bound, ssl=tls, backlog=self._options.backlog
        )

    async def stop(self, grace_s: float) -> None:
        """Accept no more, finish what is under way within ``grace_s`` seconds, cut the rest."""
        if self._server is None:
            return
        self._server.close()
        for connection in self._connections():
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._wait_closed()
        for connection in self._connections():
            connection.transport.abort()
        await self._wait_closed()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks)
        self._headers.stop()

    def _connections(self) -> list[HttpProtocol]:
        return [c for c in self._state.connections if isinstance(c, HttpProtocol)]

    async def _wait_closed(self) -> None:
        while self._state.connections:
            self._all_closed.clear()
            await self._all_closed.wait()

    def _protocol(self) -> HttpProtocol:
        return HttpProtocol(
            self._config, self._state, self._options.head_timeout_s, self._connection_lost
        )

    def _connection_lost(self) -> None:
        if not self._state.connections:
            self._all_closed.set()


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
