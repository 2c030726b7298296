"""Many datagrams a system call, on a non-blocking UDP socket.

Where the kernel has them (Linux), one call moves up to 64 KiB of datagrams: on the way in those of
one sender, coalesced (UDP_GRO); on the way out those of one size, which the kernel cuts apart
(UDP_SEGMENT, "GSO"). Elsewhere each datagram is a call of its own.
"""

import errno
import logging
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

logger = logging.getLogger(__name__)

Address: TypeAlias = Any  # of socket: (host, port), and two numbers more for IPv6

MAX_DATAGRAM_BYTES = 65_535
# A burst of a whole window must find room. The kernel caps it at net.core.rmem_max.
BUFFER_BYTES = 4 * 1024 * 1024

# linux/udp.h; Python's socket module does not name them.
SOL_UDP, UDP_SEGMENT, UDP_GRO = 17, 103, 104
# What every kernel that cuts accepts: UDP_MAX_SEGMENTS, and less than an IPv6 packet's limit.
MOST_SEGMENTS = 64
MOST_SEGMENT_BYTES = 65_000
_ANCILLARY_BYTES = socket.CMSG_SPACE(4)
# What the kernel says when it cannot cut: not at all, or not for the device on the way.
_CANNOT_CUT = {errno.EIO, errno.EINVAL, errno.ENOPROTOOPT, errno.EOPNOTSUPP, errno.EMSGSIZE}


class BulkSocket:
    """``udp``, which stays its caller's; ``coalesces`` and ``cuts`` are what its kernel can do."""

    def __init__(self, udp: socket.socket) -> None:
        self._socket = udp
        self._view = memoryview(bytearray(MAX_DATAGRAM_BYTES))
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            udp.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
        self.coalesces = _accepts(udp, UDP_GRO, 1)
        self.cuts = _accepts(udp, UDP_SEGMENT, 0)

    def receive(self) -> tuple[bytes, int, Address]:
        """Return what has arrived of one sender, and the size of each datagram but the last.

        Raises OSError: nothing is left, or an ICMP error of an earlier send.
        """
        size, notes, _, address = self._socket.recvmsg_into([self._view], _ANCILLARY_BYTES)
        for level, kind, note in notes:
            if (level, kind) == (SOL_UDP, UDP_GRO):
                step = int.from_bytes(note[:4], "little")
                return bytes(self._view[:size]), step or size, address
        return bytes(self._view[:size]), size, address

    def send(self, datagrams: Sequence[tuple[bytes, Address]]) -> None:
        """Send in as few calls as possible; drop what the kernel does not take."""
        for run, address in runs(datagrams):
            done = self._send_run(run, address) if len(run) > 1 and self.cuts else 0
            for datagram in run[done:]:
                self.send_one(datagram, address)

    def send_one(self, data: bytes, address: Address) -> bool:
        """Send, or drop what the kernel does not take: QUIC sends again what is lost."""
        try:
            self._socket.sendmsg([data], [], 0, address)
        except OSError:
            return False
        return True

    def _send_run(self, run: Sequence[bytes], address: Address) -> int:
        """Send datagrams of one size in one call; return how many are done with."""
        size = [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", len(run[0])))]
        try:
            self._socket.sendmsg(run, size, 0, address)
        except OSError as error:
            # To port 0, say, nothing can be sent at all: whoever claims to be there must not
            # slow down everybody else.
            if error.errno not in _CANNOT_CUT or not self.send_one(run[0], address):
                return len(run)
            logger.info("UDP: sends one by one from here on, as the way out cannot cut: %s", error)
            self.cuts = False
            return 1
        return len(run)


def _accepts(udp: socket.socket, option: int, value: int) -> bool:
    try:
        udp.setsockopt(SOL_UDP, option, value)
    except OSError:
        return False
    return True


def segments(data: bytes, step: int) -> list[bytes]:
    """Return the datagrams of ``step`` bytes in ``data``, of which the last may be shorter."""
    if step >= len(data):
        return [data]
    return [data[start : start + step] for start in range(0, len(data), step)]


def runs(datagrams: Sequence[tuple[bytes, Address]]) -> Iterator[tuple[list[bytes], Address]]:
    """Yield ``datagrams`` in order, in runs to one address that the kernel can cut apart.

    All of a run are of one size, but for the last, which may be shorter.
    """
    run: list[bytes] = []
    last: Address = None
    for datagram, address in datagrams:
        if run and (address != last or not _fits(run, len(datagram))):
            yield run, last
            run = []
        run.append(datagram)
        last = address
    if run:
        yield run, last


def _fits(run: Sequence[bytes], size: int) -> bool:
    step = len(run[0])
    return (
        len(run[-1]) == step >= size
        and len(run) < MOST_SEGMENTS
        and len(run) * step + size <= MOST_SEGMENT_BYTES
    )
