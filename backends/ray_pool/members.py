"""The actors of one pool: which are up, how busy each is, and who takes the next batch."""

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from backends.ray_pool.alive import Alive
from scheduler.errors import Code, ServingError


@dataclass(slots=True, eq=False)
class Member:
    """One actor; all but ``number`` and ``handle`` is the pool's to read and write.

    ``ping`` is the call that asks whether it is alive, while it is not known to be ``up``.
    """

    number: int
    handle: Any
    lanes: int = 1
    node: str = ""
    pid: int = 0
    in_flight: int = 0
    up: bool = False
    retiring: bool = False
    ping: Any = field(default=None, repr=False)


class Members:
    """Lend members to callers, the least loaded first; any thread may call.

    ``ahead`` is how many batches each takes besides those that it computes.
    """

    def __init__(self, ahead: int) -> None:
        self._ahead = ahead
        self._all: list[Member] = []
        self._changed = threading.Condition()
        self._given_up = self._held = False
        self._most_busy = self._busy = 0
        self.lanes_now = 0

    def all(self) -> list[Member]:
        """Return every member that is not retiring."""
        with self._changed:
            return [member for member in self._all if not member.retiring]

    def add(self, member: Member) -> None:
        """Take in ``member``, which is not up yet."""
        with self._changed:
            self._all.append(member)

    def up(self, member: Member, alive: Alive) -> None:
        """Lend ``member`` from now on."""
        with self._changed:
            member.lanes, member.node, member.pid = alive.lanes, alive.node, alive.pid
            member.up = True
            self._given_up = False
            self._count()

    def down(self, lost: Member) -> None:
        """Lend neither ``lost`` nor who shares its machine, until they are found to be alive."""
        with self._changed:
            for member in self._all:
                if member is lost or member.node == lost.node:
                    member.up = False
            self._count()

    def retire(self) -> None:
        """Lend the least loaded no more; it is among ``retired`` once it has nothing to do."""
        with self._changed:
            left = [member for member in self._all if not member.retiring]
            member = min(left, key=lambda each: (each.up, each.in_flight, -each.number))
            member.retiring = True
            self._count()

    def remove(self, member: Member) -> None:
        """Forget ``member``."""
        with self._changed:
            self._all = [each for each in self._all if each is not member]
            self._count()

    def retired(self) -> list[Member]:
        """Return the members that retire and have nothing to do any more."""
        with self._changed:
            return [each for each in self._all if each.retiring and not each.in_flight]

    def take(self, give_up_s: float, tried: Sequence[Member]) -> Member:
        """Return the least loaded member, on another machine than those ``tried`` if there is one.

        Waits for one until ``give_up_s``; where that was in vain, nobody waits any more until one
        is up. Raises ServingError (UNAVAILABLE).
        """
        nodes = {member.node for member in tried}
        with self._changed:
            while not (able := self._able()) or self._held:
                left_s = give_up_s - time.monotonic()
                if self._given_up or left_s <= 0:
                    self._given_up = True
                    raise ServingError(Code.UNAVAILABLE, "no replica is up", retry_after_s=1.0)
                self._changed.wait(left_s)
            member = min(
                able,
                key=lambda each: (each.node in nodes, each.in_flight / each.lanes, each.number),
            )
            member.in_flight += 1
            self._busy += 1
            self._most_busy = max(self._most_busy, self._busy)
            return member

    def give_back(self, member: Member) -> None:
        """Take back what ``take`` has lent."""
        with self._changed:
            member.in_flight -= 1
            self._busy -= 1

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Lend none within the block, which begins at once: what is lent stays out."""
        with self._changed:
            self._held = True
        try:
            yield
        finally:
            with self._changed:
                self._held = self._given_up = False
                self._changed.notify_all()

    def most_busy(self) -> int:
        """Return the most batches under way at once since the last time this was asked."""
        with self._changed:
            most, self._most_busy = self._most_busy, self._busy
            return most

    def wait(self, seconds: float) -> None:
        """Wait until something changes, at most so long."""
        with self._changed:
            self._changed.wait(seconds)

    def _count(self) -> None:
        self.lanes_now = sum(each.lanes + self._ahead for each in self._able())
        self._changed.notify_all()

    def _able(self) -> list[Member]:
        return [each for each in self._all if each.up and not each.retiring]
