"""The UDP endpoint: datagrams to connections, new ones within a limit, and an orderly end."""

import asyncio
import contextlib
import socket
from typing import Any

from aioquic.asyncio.server import QuicServer
from aioquic.h3.connection import ErrorCode
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from transports.http3.connection import Connection, Host
from transports.http3.udp import UdpTransport

LONG_HEADER = 0x80


class QuicEndpoint(QuicServer):
    """aioquic's server with a bound on connections and a graceful stop."""

    def __init__(self, host: Host, configuration: QuicConfiguration, max_connections: int) -> None:
        super().__init__(configuration=configuration, create_protocol=self._connect)
        self._host = host
        self._max_connections = max_connections
        self._udp: UdpTransport | None = None

    def start(self, bound: socket.socket) -> None:
        """Serve on ``bound``, which is the endpoint's from here on."""
        self._udp = UdpTransport(bound, self)

    def datagram_received(self, data: bytes | str, addr: Any) -> None:
        """Pass a datagram on, unless it asks for a connection too many."""
        if len(self._host.connections) >= self._max_connections and self._is_foreign(data):
            return
        super().datagram_received(data, addr)

    async def stop(self, grace_s: float) -> None:
        """Take nothing new, finish what is under way within ``grace_s`` seconds, close."""
        if self._udp is None:
            return
        self._max_connections = 0
        for connection in self._host.connections:
            connection.go_away()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while not all(connection.idle for connection in self._host.connections):
                    self._host.progress.clear()
                    await self._host.progress.wait()
        for connection in self._host.connections:
            connection.drop_requests()
        if self._host.tasks:
            await asyncio.wait(self._host.tasks)
        for connection in self._host.connections:
            connection.close_now(ErrorCode.H3_NO_ERROR)
        self._host.connections.clear()
        self._udp.close()

    def _connect(self, quic: QuicConnection, **_: Any) -> Connection:
        return Connection(self._host, quic)

    def _is_foreign(self, data: bytes | str) -> bool:
        """A handshake packet (RFC 9000 17.2) for a connection id that is not ours."""
        if isinstance(data, str) or len(data) < 6 or not data[0] & LONG_HEADER:
            return False
        return data[6 : 6 + data[5]] not in self._protocols
