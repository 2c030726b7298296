"""A UDP socket on the loop, which hands over everything that has arrived in one wake-up."""

import asyncio
import socket
from collections.abc import Sequence
from typing import Any, Protocol

from transports.http3.bulk import Address, BulkSocket, segments

# Enough for a congestion window's worth; more would keep other connections waiting.
DATAGRAMS_PER_WAKE_UP = 256


class Receiver(Protocol):
    """Who takes what arrives."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport to send with."""

    def datagrams_received(self, datagrams: Sequence[bytes], address: Address) -> None:
        """Take datagrams of one sender, in the order of their arrival."""


class UdpTransport(asyncio.DatagramTransport):
    """Reads and writes ``bound``, which is its own from here on."""

    def __init__(self, bound: socket.socket, receiver: Receiver) -> None:
        super().__init__()
        self._socket = bound
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self.bulk = BulkSocket(bound)
        receiver.connection_made(self)
        self._loop.add_reader(bound, self._readable)

    def sendto(self, data: Any, addr: Any = None) -> None:
        """Send one datagram, or drop it."""
        if not self.is_closing():
            self.bulk.send_one(data, addr)

    def send_all(self, datagrams: Sequence[tuple[bytes, Address]]) -> None:
        """Send ``datagrams`` in as few calls as possible; drop what the kernel does not take."""
        if not self.is_closing():
            self.bulk.send(datagrams)

    def is_closing(self) -> bool:
        """Say whether the socket is closed."""
        return self._socket.fileno() < 0

    def close(self) -> None:
        """Stop reading and close the socket at once."""
        if not self.is_closing():
            self._loop.remove_reader(self._socket)
            self._socket.close()

    def _readable(self) -> None:
        left = DATAGRAMS_PER_WAKE_UP
        while left > 0 and not self.is_closing():
            try:
                data, step, address = self.bulk.receive()
            except OSError:  # nothing left, or an ICMP error of an earlier send
                return
            datagrams = segments(data, step)
            left -= len(datagrams)
            self._receiver.datagrams_received(datagrams, address)
