"""What the requests of all connections hold, together."""

from scheduler.errors import Code, ServingError

# A guess: the requests that fill the budget are answered, or given up, in moments.
_RETRY_S = 1.0


class Budget:
    """Count the bytes of all requests held, of which there may be ``limit_bytes``."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.held_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Count bytes that are held from now on. Raises ServingError (OVERLOADED)."""
        if self.held_bytes + size_bytes > self._limit_bytes:
            raise ServingError(
                Code.OVERLOADED,
                "message: the messages of all calls together would exceed the limit of "
                f"{self._limit_bytes} bytes (option max_buffered_bytes of the grpc transport)",
                retry_after_s=_RETRY_S,
            )
        self.held_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Count bytes that are held no more."""
        self.held_bytes -= size_bytes


class Share:
    """What one call holds of a budget: what has come, and what the call's method was given.

    What was given stays counted until the method is done with it, even if the call is over.
    """

    __slots__ = ("_budget", "_given_bytes", "_held_bytes")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._held_bytes = 0  # what was given, too
        self._given_bytes = 0

    @property
    def waiting_bytes(self) -> int:
        """What no method has."""
        return self._held_bytes - self._given_bytes

    def take(self, size_bytes: int) -> None:
        """Count what has come, or was unpacked. Raises ServingError (OVERLOADED)."""
        self._budget.take(size_bytes)
        self._held_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Count what waited and is dropped; more than what waits is not."""
        size_bytes = min(size_bytes, self.waiting_bytes)
        self._budget.give_back(size_bytes)
        self._held_bytes -= size_bytes

    def drop_waiting(self) -> None:
        """Count what waited as dropped."""
        if self._held_bytes > self._given_bytes:
            self.give_back(self._held_bytes - self._given_bytes)

    def give(self, size_bytes: int) -> None:
        """Count what a method is given."""
        self._given_bytes += size_bytes

    def give_waiting(self) -> None:
        """Count what waited as given to a method."""
        self._given_bytes = self._held_bytes

    def done_with(self, size_bytes: int) -> None:
        """Count what a method was given and has used."""
        self._given_bytes -= size_bytes
        self.give_back(size_bytes)

    def close(self) -> None:
        """Count nothing more: the method is over."""
        self._budget.give_back(self._held_bytes)
        self._held_bytes = self._given_bytes = 0
