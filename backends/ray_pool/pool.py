"""Interchangeable actors: a call goes to the least loaded, and once elsewhere if that is lost."""

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from backends.ray_pool.changes import Changes
from backends.ray_pool.cluster import free
from backends.ray_pool.keeper import Keeper, first_line
from backends.ray_pool.members import Member, Members
from backends.ray_pool.scaling import Bounds
from scheduler.errors import Code, ServingError

_log = logging.getLogger(__name__)

_ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class Times:
    """How long (seconds) one call, a batch with all that happens to it, and the start may take."""

    call_s: float
    patience_s: float
    load_s: float


class Pool:
    """Call the actors that ``place`` makes, as many as ``bounds`` allow and the load asks for."""

    def __init__(
        self, name: str, place: Callable[[], Any], bounds: Bounds, times: Times, ahead: int
    ) -> None:
        self._name = name
        self._times = times
        self._members = Members(ahead)
        self.changes = Changes()
        self._keeper = Keeper(name, self._members, place, bounds, self.changes)

    def place(self) -> None:
        """Place the first actors; ``start`` waits for them."""
        self._keeper.place()

    def start(self) -> None:
        """Wait until the first actors are up. Raises LoadError."""
        try:
            self._keeper.start(self._times.load_s, free)
        except BaseException:
            self.close()
            raise

    def lanes_for(self, waiting_rows: int) -> int:
        """Return how many calls may run at once now; ``waiting_rows`` is what scales the pool.

        Raises RuntimeError if nobody looks after the pool any more, which fails the model.
        """
        if self._keeper.ended:
            raise RuntimeError(f"{self._name}: the thread that looks after it has ended")
        self._keeper.waiting_rows = waiting_rows
        return max(1, self._members.lanes_now)

    def processes(self) -> dict[int, str]:
        """Return the process of each actor that is up, with its node."""
        return {member.pid: member.node for member in self.up()}

    def call(self, send: Callable[[Any], Any]) -> Any:
        """Do what ``begin`` begins, and return its result."""
        return self.begin(send).result()

    def begin(self, send: Callable[[Any], Any]) -> "Call":
        """Let the least loaded actor do what ``send`` asks of a handle.

        Raises ServingError (UNAVAILABLE) if none is up for too long.
        """
        return Call(self, send, self._times)

    def take(self, give_up_s: float, tried: list[Member]) -> Member:
        """Return an actor to ask, by preference elsewhere than ``tried``. Raises ServingError."""
        return self._members.take(give_up_s, tried)

    def give_back(self, member: Member) -> None:
        """Take back what ``take`` gave."""
        self._members.give_back(member)

    def up(self) -> list[Member]:
        """Return the actors that are up and stay."""
        return [member for member in self._members.all() if member.up]

    def held(self) -> AbstractContextManager[None]:
        """Begin no call within the block."""
        return self._members.held()

    def behind(self, member: Member) -> None:
        """Ask ``member`` no more until it has caught up with the others."""
        self._members.down(member)
        _log.warning("%s: replica %d is behind", self._name, member.number)

    def lost(self, member: Member, error: RayError) -> None:
        """Ask ``member`` no more until it is found to be alive."""
        self._members.down(member)
        _log.warning("%s: replica %d: %s", self._name, member.number, first_line(error))
        if isinstance(error, GetTimeoutError):
            ray.kill(member.handle, no_restart=False)  # it hangs: Ray makes it anew

    def close(self) -> None:
        """End every actor."""
        self._keeper.stop()


class Call:
    """One call that has begun: asked for its ``result`` once, or dropped."""

    def __init__(self, pool: Pool, send: Callable[[Any], Any], times: Times) -> None:
        self._pool = pool
        self._send = send
        self._call_s = times.call_s
        self._give_up_s = time.monotonic() + times.patience_s
        self._tried: list[Member] = []
        self._member: Member | None = None
        self._answer: Any = None
        self._begin()

    def result(self) -> Any:
        """Wait for what the actor returns; if it is lost, another is asked, once.

        Raises ServingError (UNAVAILABLE) if that is lost too, or none was up for too long; else
        what the actor raised.
        """
        while True:
            left_s = max(0.0, self._give_up_s - time.monotonic())
            try:
                return ray.get(self._answer, timeout=min(self._call_s, left_s))
            except RayTaskError:  # of the actor's own code, which is there
                raise
            except RayError as error:
                if left_s < self._call_s and isinstance(error, GetTimeoutError):
                    detail = "no replica has answered in time"
                    raise ServingError(Code.UNAVAILABLE, detail, retry_after_s=1.0) from error
                self._pool.lost(self._tried[-1], error)
            finally:
                self.drop()
            if len(self._tried) == _ATTEMPTS:
                detail = "two replicas were lost over it"
                raise ServingError(Code.UNAVAILABLE, detail, retry_after_s=1.0)
            self._begin()

    def drop(self) -> None:
        """Want no result any more; nothing happens if there was one."""
        self._answer = None
        if self._member is not None:
            self._pool.give_back(self._member)
            self._member = None

    def _begin(self) -> None:
        self._member = member = self._pool.take(self._give_up_s, self._tried)
        self._tried.append(member)
        self._answer = self._send(member.handle)
