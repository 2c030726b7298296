"""The store in which two ranks look each other up, kept over the control channel.

PyTorch's own TCPStore would be one more port that anybody may write to.
"""

import threading
from collections.abc import Callable
from datetime import timedelta

from torch._C._distributed_c10d import Store  # torch.distributed has it for no type checker

# Of both ranks together; gloo sets one each, NCCL a few.
MAX_KEYS = 64


class RelayedStore(Store):
    """Hold what both ranks set: ``tell(key, value)`` lets the other know, ``put`` has its own."""

    def __init__(self, tell: Callable[[str, bytes], None], timeout_s: float) -> None:
        super().__init__()
        self._tell: Callable[[str, bytes], None] | None = tell
        self._timeout_s = timeout_s
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def put(self, key: str, value: bytes) -> None:
        """Take what the other rank has set. Raises ValueError if it sets too much."""
        with self._changed:
            if len(self._values) >= MAX_KEYS:
                raise ValueError(f"rendezvous: more than {MAX_KEYS} keys")
            self._values[key] = value
            self._changed.notify_all()

    def set(self, key: str, value: bytes | str) -> None:
        """Set a key for both."""
        content = value.encode() if isinstance(value, str) else bytes(value)
        self.put(key, content)
        if self._tell is not None:
            self._tell(key, content)

    def close(self) -> None:
        """Tell the other no more: both have met, and nobody relays from now on."""
        self._tell = None

    def get(self, key: str) -> bytes:
        """Return what is set, once it is. Raises TimeoutError."""
        self.wait([key])
        return self._values[key]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Return once all of ``keys`` are set. Raises TimeoutError."""
        limit_s = timeout.total_seconds() if timeout else self._timeout_s
        with self._changed:
            if not self._changed.wait_for(lambda: self.check(keys), limit_s):
                raise TimeoutError(f"rendezvous: nothing came in {limit_s:g} s")

    def check(self, keys: list[str]) -> bool:
        """Return whether all of ``keys`` are set."""
        return all(key in self._values for key in keys)
