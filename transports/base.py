"""The transport plug point.

A plug-in is a class with a frozen ``Options`` dataclass and ``__init__(options)``, registered
under ``narsil.transports``.
"""

from typing import Protocol

from scheduler.engine import Engine

# How long the engine takes what a transport still serves while it stops: what was on the wire.
HOLD_S = 0.2


class Transport(Protocol):
    """Serve one wire protocol on the running event loop."""

    async def start(self, engine: Engine) -> tuple[str, ...]:
        """Listen; return the addresses as URLs with the real port. Raises OSError: port taken."""

    async def stop(self, grace_s: float) -> None:
        """Stop accepting, let answers under way finish for at most ``grace_s`` seconds, close.

        What is read within ``HOLD_S`` seconds may still be served.
        """
