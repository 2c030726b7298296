"""The UDP endpoint: datagrams to connections, new ones within a limit, and an orderly end."""

import asyncio
import contextlib
import itertools
import logging
import socket
from collections.abc import Sequence
from typing import Any

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import QuicServer
from aioquic.buffer import Buffer  # type: ignore[attr-defined]  # lacks an __all__
from aioquic.h3.connection import ErrorCode
from aioquic.quic.configuration import SMALLEST_MAX_DATAGRAM_SIZE, QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import (
    QuicHeader,
    QuicPacketType,
    encode_quic_retry,
    pull_quic_header,
)
from aioquic.quic.retry import QuicRetryTokenHandler

from transports.http.listener import FLUSH_S, grace_over
from transports.http3.bulk import Address
from transports.http3.connection import Connection, Host
from transports.http3.established import EstablishedQuic
from transports.http3.quic import QuicProtocol
from transports.http3.steering import Steering
from transports.http3.udp import UdpTransport
from transports.tls import Renewed

LONG_HEADER = 0x80
# With so many handshakes unfinished, a client must first show that it receives what is sent to
# its address (RFC 9000 8.1.2): a round trip more, but a made-up address costs nothing.
RETRY_FROM_HANDSHAKES = 32
MAX_HANDSHAKES = 256
_COUNTS = {True: "in bulk", False: "one by one: the kernel does not do more"}

logger = logging.getLogger(__name__)


class QuicEndpoint(QuicServer):
    """aioquic's server with a bound on connections and a graceful stop."""

    def __init__(
        self,
        host: Host,
        configuration: Renewed[QuicConfiguration],
        max_connections: int,
        steering: Steering,
    ) -> None:
        super().__init__(configuration=configuration.value, create_protocol=self._connect)
        self._host = host
        self._renewed = configuration
        self._max_connections = max_connections
        self._steering = steering
        self._tokens = QuicRetryTokenHandler()
        self._udp: UdpTransport | None = None

    def start(self, bound: socket.socket) -> None:
        """Serve on ``bound``, which is the endpoint's from here on."""
        self._udp = UdpTransport(bound, self)
        bulk = self._udp.bulk
        logger.log(
            # Of several processes one says it for all: they have the same kernel.
            logging.DEBUG if self._steering.number else logging.INFO,
            "UDP datagrams come %s and go %s",
            _COUNTS[bulk.coalesces], _COUNTS[bulk.cuts],
        )  # fmt: skip

    def datagrams_received(self, datagrams: Sequence[bytes], address: Address) -> None:
        """Pass datagrams of one sender on, those of one connection together."""
        for connection, run in itertools.groupby(datagrams, self._connection_of):
            if isinstance(connection, QuicProtocol):
                connection.datagrams_received([*run], address)
            else:
                for datagram in run:
                    self.datagram_received(datagram, address)

    def datagram_received(self, data: bytes | str, addr: Any) -> None:
        """Pass a datagram on, unless it asks for a connection too many."""
        foreign = self._foreign(data)
        if foreign is not None:
            if self._full():
                return
            asked = len(self._host.handshakes) >= RETRY_FROM_HANDSHAKES
            wanted = asked or self._is_ours(foreign, addr)
            if wanted and not foreign.token and self._may_begin(foreign, data):
                self._send_retry(foreign, addr)
                return
            self._retry = self._tokens if wanted else None  # type: ignore[assignment]  # inferred
            if self._renewed.refresh():
                self._configuration = self._renewed.value
        super().datagram_received(data, addr)

    async def stop(self, grace_s: float) -> None:
        """Take nothing new, finish what is under way within ``grace_s`` seconds or refuse it."""
        if self._udp is None:
            return
        self._max_connections = 0
        for connection in self._host.connections:
            connection.go_away()
        await self._wait_idle_for(grace_s)
        for connection in self._host.connections:
            connection.cut_requests(grace_over())
        await self._wait_idle_for(FLUSH_S)
        for connection in self._host.connections:
            connection.drop_requests()
        if self._host.tasks:
            await asyncio.wait(self._host.tasks)
        for connection in self._host.connections:
            connection.close_now(ErrorCode.H3_NO_ERROR)
        self._host.connections.clear()
        self._host.handshakes.clear()
        self._udp.close()

    async def _wait_idle_for(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not all(connection.idle for connection in self._host.connections):
                    self._host.progress.clear()
                    await self._host.progress.wait()

    def _connect(self, quic: QuicConnection, **_: Any) -> Connection:
        return Connection(self._host, EstablishedQuic.adopted(quic, self._steering))

    def _full(self) -> bool:
        handshakes = len(self._host.handshakes)
        taken = len(self._host.connections) - handshakes
        return taken >= self._max_connections or handshakes >= MAX_HANDSHAKES

    def _connection_of(self, data: bytes) -> QuicConnectionProtocol | None:
        """Return whose a packet with a short header is; None for the handshake's."""
        if not data or data[0] & LONG_HEADER:
            return None
        return self._protocols.get(data[1 : 1 + self._configuration.connection_id_length])

    def _foreign(self, data: bytes | str) -> QuicHeader | None:
        """Return the header of a handshake packet for a connection id that is not ours."""
        if isinstance(data, str) or not data or not data[0] & LONG_HEADER:
            return None
        try:
            header = pull_quic_header(Buffer(data=data))
        except ValueError:
            return None
        return None if header.destination_cid in self._protocols else header

    def _may_begin(self, header: QuicHeader, data: bytes | str) -> bool:
        """Say whether a packet is one that begins a connection, of a version that is spoken."""
        return (
            header.packet_type is QuicPacketType.INITIAL
            and header.version in self._configuration.supported_versions
            and len(data) >= SMALLEST_MAX_DATAGRAM_SIZE
        )

    def _send_retry(self, header: QuicHeader, addr: Any) -> None:
        """Do as aioquic would, but with a connection id that leads here."""
        assert self._udp is not None
        assert header.version is not None
        own = self._steering.connection_id(self._configuration.connection_id_length)
        token = self._tokens.create_token(
            address=addr,
            original_destination_connection_id=header.destination_cid,
            retry_source_connection_id=own,
            now=self._loop.time(),
        )
        retry = encode_quic_retry(
            version=header.version,
            source_cid=own,
            destination_cid=header.source_cid,
            original_destination_cid=header.destination_cid,
            retry_token=token,
        )
        self._udp.sendto(retry, addr)

    def _is_ours(self, header: QuicHeader, addr: Any) -> bool:
        """Say whether a packet answers a Retry of ours, as it may when none is asked any more."""
        try:
            self._tokens.validate_token(
                address=addr,
                destination_cid=header.destination_cid,
                token=header.token,
                now=self._loop.time(),
            )
        except ValueError:
            return False
        return True
