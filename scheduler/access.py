"""How a transport asks who a client is, where clients need API keys.

head -> Access.caller (known?) -> Caller.begin (one request) -> decode -> Caller.spend (its rows)
"""

from typing import Protocol


class Caller(Protocol):
    """A client whose key is known."""

    @property
    def control(self) -> bool:
        """Whether the client may load and unload models, and register shared memory."""

    def begin(self) -> None:
        """Count a request. Raises ServingError (UNAUTHENTICATED, RATE_LIMITED)."""

    def spend(self, rows: int) -> None:
        """Count its rows, once they are known. Raises ServingError (RATE_LIMITED)."""


class Access(Protocol):
    """Knows the keys."""

    def caller(self, credential: str) -> Caller:
        """Return whose ``credential`` it is, "" for none. Raises ServingError (UNAUTHENTICATED)."""
