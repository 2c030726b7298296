"""Ports on which several processes listen, each with sockets of its own (SO_REUSEPORT).

One process reserves them: it holds sockets that are bound and do not listen, so that nobody else
takes the ports and a free one keeps its number. Of a Unix domain socket there is one, which all
inherit and take connections from. A transport that can be shared so has ``share``,
set before ``start`` in each process that serves, and ``reserve``.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from transports.unix import ClaimedPath


@dataclass(frozen=True, slots=True)
class Share:
    """One process's part, the ``number``th ``of`` so many, in a transport's ``port``.

    ``udp`` and ``unix`` are the descriptors of its UDP socket and of the Unix domain socket, which
    are inherited: -1 for none.
    """

    number: int
    of: int
    port: int
    udp: int = -1
    unix: int = -1

    @property
    def unix_socket(self) -> socket.socket | None:
        """The Unix domain socket, which listens."""
        return socket.socket(fileno=self.unix) if self.unix >= 0 else None


class Reserved:
    """What is held for a transport; ``shares`` has each process's part."""

    def __init__(
        self,
        port: int,
        count: int,
        held: Sequence[socket.socket],
        udp: Sequence[socket.socket] = (),
        unix: ClaimedPath | None = None,
    ) -> None:
        self._held = (*held, *udp)
        self._unix = unix
        descriptors = [each.fileno() for each in udp]
        descriptors += [-1] * (count - len(descriptors))
        self.shares = tuple(
            Share(number, count, port, descriptor, unix.listening.fileno() if unix else -1)
            for number, descriptor in enumerate(descriptors)
        )

    def release(self) -> None:
        """Have nobody find the way any more, who did not so far."""
        if self._unix is not None:
            self._unix.release()

    def close(self) -> None:
        """Let go of the ports, and of the path."""
        self.release()
        if self._unix is not None:
            self._unix.listening.close()
        for each in self._held:
            each.close()


class Shareable(Protocol):
    """A transport that can be shared."""

    share: Share | None

    async def reserve(self, count: int) -> Reserved:
        """Hold its ports for so many processes. Raises OSError that names a taken one."""
