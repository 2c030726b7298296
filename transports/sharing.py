"""Ports on which several processes listen, each with sockets of its own (SO_REUSEPORT).

One process reserves them: it holds sockets that are bound and do not listen, so that nobody else
takes the ports and a free one keeps its number. A transport that can be shared so has ``share``,
set before ``start`` in each process that serves, and ``reserve``.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Share:
    """One process's part, the ``number``th ``of`` so many, in a transport's ``port``.

    ``udp`` is the descriptor of its UDP socket, which is inherited: -1 for none.
    """

    number: int
    of: int
    port: int
    udp: int = -1


class Reserved:
    """What is held for a transport; ``shares`` has each process's part."""

    def __init__(
        self,
        port: int,
        count: int,
        held: Sequence[socket.socket],
        udp: Sequence[socket.socket] = (),
    ) -> None:
        self._held = (*held, *udp)
        descriptors = [each.fileno() for each in udp]
        descriptors += [-1] * (count - len(descriptors))
        self.shares = tuple(
            Share(number, count, port, descriptor) for number, descriptor in enumerate(descriptors)
        )

    def close(self) -> None:
        """Let go of the ports."""
        for each in self._held:
            each.close()


class Shareable(Protocol):
    """A transport that can be shared."""

    share: Share | None

    async def reserve(self, count: int) -> Reserved:
        """Hold its ports for so many processes. Raises OSError that names a taken one."""
