"""Interchangeable actors: a call goes to the least loaded, and once elsewhere if that is lost."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

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
        self._keeper = Keeper(name, self._members, place, bounds)

    def start(self) -> None:
        """Place the first actors and wait for them. Raises LoadError."""
        try:
            self._keeper.start(self._times.load_s, free)
        except BaseException:
            self.close()
            raise

    def lanes_for(self, waiting_rows: int) -> int:
        """Return how many calls may run at once now; ``waiting_rows`` is what scales the pool."""
        self._keeper.waiting_rows = waiting_rows
        return max(1, self._members.lanes_now)

    def call(self, send: Callable[[Any], Any]) -> Any:
        """Let the least loaded actor do what ``send`` asks of a handle; return what it returns.

        Raises ServingError (UNAVAILABLE) if two were lost over it, or none was up for too long;
        else what the actor raised.
        """
        give_up_s = time.monotonic() + self._times.patience_s
        tried: list[Member] = []
        while len(tried) < _ATTEMPTS:
            member = self._members.take(give_up_s, tried)
            tried.append(member)
            try:
                left_s = max(0.0, give_up_s - time.monotonic())
                return ray.get(send(member.handle), timeout=min(self._times.call_s, left_s))
            except RayTaskError:  # of the actor's own code, which is there
                raise
            except RayError as error:
                self._lost(member, error)
            finally:
                self._members.give_back(member)
        raise ServingError(Code.UNAVAILABLE, "two replicas were lost over it", retry_after_s=1.0)

    def close(self) -> None:
        """End every actor."""
        self._keeper.stop()

    def _lost(self, member: Member, error: RayError) -> None:
        self._members.down(member)
        _log.warning("%s: replica %d: %s", self._name, member.number, first_line(error))
        if isinstance(error, GetTimeoutError):
            ray.kill(member.handle, no_restart=False)  # it hangs: Ray makes it anew
