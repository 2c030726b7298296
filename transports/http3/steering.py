"""Several processes on one UDP port: each connection's datagrams go to the process that has it.

The kernel asks a small program (classic BPF) which socket a datagram is for. It takes the first
byte of the destination connection id, modulo the number of sockets. A client chooses that byte for
its first packets, so that the load spreads; every connection id that a server gives out begins with
a byte that leads back to itself (RFC 9000 5.1 leaves the contents to the endpoint).
"""

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from transports.http.sockets import bind, port_of, reserve

# linux/socket.h; Python's socket module does not name it.
_SO_ATTACH_REUSEPORT_CBPF = 51
_UNKNOWN = (errno.ENOPROTOOPT, errno.EPERM, errno.EINVAL, errno.EOPNOTSUPP)
# One byte of a connection id has to be able to name each.
MAX_PROCESSES = 64
# Operations of classic BPF (linux/bpf_common.h).
_LOAD_BYTE, _JUMP_IF_SET, _JUMP, _MODULO, _RETURN = 0x30, 0x45, 0x05, 0x94, 0x16
_LONG_HEADER = 0x80
# Where the destination connection id begins (RFC 9000 17.2, 17.3).
_AT_IN_LONG, _AT_IN_SHORT = 6, 1


@dataclass(frozen=True, slots=True)
class Steering:
    """Makes connection ids that lead to the ``number``th ``of`` so many processes."""

    number: int = 0
    of: int = 1

    def connection_id(self, length: int) -> bytes:
        """Return a new one of ``length`` bytes, random but for where it leads."""
        rest = os.urandom(length)
        choices = (255 - self.number) // self.of + 1
        return bytes([self.number + self.of * (rest[0] % choices)]) + rest[1:]


def process_of(datagram: bytes, count: int) -> int:
    """Return which of so many processes ``datagram`` is for: what the kernel's program computes."""
    at = _AT_IN_LONG if datagram[:1] and datagram[0] & _LONG_HEADER else _AT_IN_SHORT
    return datagram[at] % count if len(datagram) > at else 0


def steered_sockets(host: str, port: int, count: int) -> tuple[list[socket.socket], bool]:
    """Return ``count`` UDP sockets on one port, and whether the kernel steers between them.

    If it cannot there is one alone. Raises OSError that names a taken port.
    """
    sockets = [reserve(host, port, socket.SOCK_DGRAM)]
    try:
        sockets += [
            bind(host, port_of(sockets[0]), socket.SOCK_DGRAM, shared=True)
            for _ in range(count - 1)
        ]
        if count > 1:
            _attach(sockets[0], count)
    except OSError as error:
        for each in sockets[1:]:
            each.close()
        if error.errno in _UNKNOWN:
            return sockets[:1], False
        sockets[0].close()
        raise
    return sockets, True


def _attach(bound: socket.socket, count: int) -> None:
    program = _assembled([
        (_LOAD_BYTE, 0, 0, 0),
        (_JUMP_IF_SET, 0, 2, _LONG_HEADER),
        (_LOAD_BYTE, 0, 0, _AT_IN_LONG),
        (_JUMP, 0, 0, 1),
        (_LOAD_BYTE, 0, 0, _AT_IN_SHORT),
        (_MODULO, 0, 0, count),
        (_RETURN, 0, 0, 0),
    ])  # fmt: skip
    buffer = ctypes.create_string_buffer(program)
    head = struct.pack("HP", len(program) // 8, ctypes.addressof(buffer))
    bound.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_REUSEPORT_CBPF, head)


def _assembled(lines: Sequence[tuple[int, int, int, int]]) -> bytes:
    return b"".join(struct.pack("HBBI", *line) for line in lines)
