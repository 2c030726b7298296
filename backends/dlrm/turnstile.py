"""Lanes that batches pass through one at a time each, and that can all be held for a moment."""

import contextlib
import queue
import time
from collections.abc import Iterator, Sequence
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")
# None tells who waits here that the workers are elsewhere now.
Home: TypeAlias = queue.SimpleQueue[T | None]


class Turnstile(Generic[T]):
    """Hand each of ``workers`` to one caller at a time.

    Holding them costs those that pass nothing: the workers move to another queue, where whoever
    comes next waits, and one that is out comes back to where it was taken from.
    """

    def __init__(self, workers: Sequence[T]) -> None:
        self._count = len(workers)
        self._home: Home[T] = queue.SimpleQueue()
        for worker in workers:
            self._home.put(worker)

    def idle(self) -> bool:
        """Return whether nobody is out, just now."""
        return self._home.qsize() >= self._count

    def take(self) -> tuple[Home[T], T]:
        """Wait for a free worker; the caller puts it back into the queue that comes with it."""
        home = self._home
        while (worker := home.get()) is None:
            home.put(None)  # others may wait here too
            home = self._home
        return home, worker

    @contextlib.contextmanager
    def held(self, timeout_s: float | None = None) -> Iterator[None]:
        """Let nobody pass within the block, which begins once everybody is out; one at a time.

        Raises TimeoutError after ``timeout_s``, and then everybody passes as before.
        """
        before = self._home
        after: Home[T] = queue.SimpleQueue()
        self._home = after
        workers: list[T | None] = []
        give_up_s = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            while len(workers) < self._count:
                left_s = None if give_up_s is None else max(0.0, give_up_s - time.monotonic())
                workers.append(before.get(timeout=left_s))
        except queue.Empty as error:
            self._move(workers, after, before)
            raise TimeoutError(f"a batch has been computing for {timeout_s:g} s") from error
        before.put(None)
        try:
            yield
        finally:
            self._move(workers, before, after)

    def _move(self, workers: list[T | None], closed: Home[T], home: Home[T]) -> None:
        self._home = home
        for worker in workers:
            home.put(worker)
        closed.put(None)
