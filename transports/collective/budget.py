"""What the requests of all callers hold together, and the most that one message may be."""

from scheduler.errors import Code, ServingError

# A guess: the requests that fill the budget are answered, or given up, in moments.
_RETRY_S = 1.0


class Budget:
    """Let in messages of up to ``message_bytes``, together up to ``buffered_bytes``."""

    def __init__(self, message_bytes: int, buffered_bytes: int) -> None:
        self._message_bytes = message_bytes
        self._buffered_bytes = buffered_bytes
        self._held_bytes = 0

    def check(self, size_bytes: int) -> None:
        """Refuse a message that is too large. Raises ServingError (PAYLOAD_TOO_LARGE)."""
        if size_bytes > self._message_bytes:
            raise ServingError(
                Code.PAYLOAD_TOO_LARGE,
                f"message has {size_bytes} bytes, the limit is {self._message_bytes} "
                "(option max_message_bytes of the collective transport)",
            )

    def take(self, size_bytes: int) -> None:
        """Count a request's bytes from now on.

        Raises ServingError (PAYLOAD_TOO_LARGE, OVERLOADED), and then they do not count.
        """
        self.check(size_bytes)
        if self._held_bytes + size_bytes > self._buffered_bytes:
            raise ServingError(
                Code.OVERLOADED,
                "message: the messages of all calls together would exceed the limit of "
                f"{self._buffered_bytes} bytes (option max_buffered_bytes of the collective "
                "transport)",
                retry_after_s=_RETRY_S,
            )
        self._held_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Count a request's bytes no more."""
        self._held_bytes -= size_bytes
