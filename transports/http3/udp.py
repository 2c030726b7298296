"""A UDP socket that reads all that has arrived in one wake-up of the loop, and sends in bulk.

Where the kernel has them (Linux), one system call moves up to 64 KiB of datagrams: on the way in
those of one sender, coalesced (UDP_GRO); on the way out those of one size, cut apart by the kernel
(UDP_SEGMENT, "GSO"). Elsewhere each datagram is a call of its own.
"""

import asyncio
import contextlib
import errno
import logging
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

logger = logging.getLogger(__name__)

Address: TypeAlias = Any  # of socket: (host, port), and two numbers more for IPv6

# Enough for a congestion window's worth; more would keep other connections waiting.
DATAGRAMS_PER_WAKE_UP = 256
MAX_DATAGRAM_BYTES = 65_535
# A burst of a whole window must find room. The kernel caps it at net.core.rmem_max.
BUFFER_BYTES = 4 * 1024 * 1024

# linux/udp.h; Python's socket module does not name them.
SOL_UDP, UDP_SEGMENT, UDP_GRO = 17, 103, 104
# UDP_MAX_SEGMENTS, and what an IPv6 packet holds; older kernels allow as much.
MOST_SEGMENTS = 64
MOST_SEGMENT_BYTES = 65_000
_ANCILLARY_BYTES = socket.CMSG_SPACE(4)
# What the kernel says when the way out cannot cut: no support, or a device without checksums.
_CANNOT_CUT = {errno.EIO, errno.EINVAL, errno.ENOPROTOOPT, errno.EOPNOTSUPP, errno.EMSGSIZE}


class Receiver(Protocol):
    """Who takes what arrives."""

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:
        """Keep the transport to send with."""

    def datagrams_received(self, datagrams: Sequence[bytes], address: Address) -> None:
        """Take datagrams of one sender, in the order of their arrival."""


@dataclass(frozen=True, slots=True)
class Offload:
    """Whether the kernel coalesces what comes in, and cuts what goes out."""

    receive: bool
    send: bool


def probe(udp: socket.socket) -> Offload:
    """Turn on what the kernel can do for ``udp``; say what that is."""
    return Offload(_accepts(udp, UDP_GRO, 1), _accepts(udp, UDP_SEGMENT, 0))


def _accepts(udp: socket.socket, option: int, value: int) -> bool:
    try:
        udp.setsockopt(SOL_UDP, option, value)
    except OSError:
        return False
    return True


class UdpTransport(asyncio.DatagramTransport):
    """Reads and writes ``bound``, which is its own from here on."""

    def __init__(self, bound: socket.socket, receiver: Receiver) -> None:
        super().__init__()
        self._socket = bound
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray(MAX_DATAGRAM_BYTES)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            bound.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
        self.offload = probe(bound)
        receiver.connection_made(self)
        self._loop.add_reader(bound, self._readable)

    def sendto(self, data: Any, addr: Any = None) -> None:
        """Send, or drop what the kernel does not take: QUIC sends again what is lost."""
        if not self.is_closing():
            with contextlib.suppress(OSError):
                self._socket.sendto(data, addr)

    def send_all(self, datagrams: Sequence[tuple[bytes, Address]]) -> None:
        """Send ``datagrams`` in as few calls as possible; drop what the kernel does not take."""
        for run, address in runs(datagrams) if self.offload.send else ():
            if len(run) == 1:
                self.sendto(run[0], address)
            elif not self._send_run(run, address):
                for datagram in run:
                    self.sendto(datagram, address)
        if not self.offload.send:
            for datagram, address in datagrams:
                self.sendto(datagram, address)

    def is_closing(self) -> bool:
        """Say whether the socket is closed."""
        return self._socket.fileno() < 0

    def close(self) -> None:
        """Stop reading and close the socket at once."""
        if not self.is_closing():
            self._loop.remove_reader(self._socket)
            self._socket.close()

    def _send_run(self, run: Sequence[bytes], address: Address) -> bool:
        """Send datagrams of one size in one call; return whether the kernel can."""
        if self.is_closing():
            return True
        size = [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", len(run[0])))]
        try:
            self._socket.sendmsg(run, size, 0, address)
        except OSError as error:
            if error.errno not in _CANNOT_CUT:
                return True
            logger.info("UDP: no segmentation on the way out (%s): one call a datagram", error)
            self.offload = Offload(self.offload.receive, send=False)
            return False
        return True

    def _readable(self) -> None:
        view = memoryview(self._buffer)
        left = DATAGRAMS_PER_WAKE_UP
        while left > 0 and not self.is_closing():
            try:
                size, ancillary, _, address = self._socket.recvmsg_into([view], _ANCILLARY_BYTES)
            except OSError:  # nothing left, or an ICMP error of an earlier send
                return
            datagrams = list(segments(bytes(view[:size]), ancillary))
            left -= len(datagrams)
            self._receiver.datagrams_received(datagrams, address)


def segments(data: bytes, ancillary: Sequence[tuple[int, int, bytes]]) -> Iterator[bytes]:
    """Yield the datagrams in ``data``, as the kernel's note in ``ancillary`` cuts it."""
    step = next(
        (int.from_bytes(note[:4], "little") for level, kind, note in ancillary
         if (level, kind) == (SOL_UDP, UDP_GRO)),
        0,
    )  # fmt: skip
    if not 0 < step < len(data):
        yield data
        return
    for start in range(0, len(data), step):
        yield data[start : start + step]


def runs(
    datagrams: Sequence[tuple[bytes, Address]],
) -> Iterator[tuple[list[bytes], Address]]:
    """Yield ``datagrams`` in order, in runs to one address that the kernel can cut apart.

    All of a run are of one size, but for the last, which may be shorter.
    """
    run: list[bytes] = []
    to: Address = None
    total = 0
    for datagram, address in datagrams:
        size = len(datagram)
        fits = (
            address == to
            and len(run[-1]) == len(run[0]) >= size
            and len(run) < MOST_SEGMENTS
            and total + size <= MOST_SEGMENT_BYTES
        ) if run else False  # fmt: skip
        if run and not fits:
            yield run, to
            run, total = [], 0
        run.append(datagram)
        to, total = address, total + size
    if run:
        yield run, to
