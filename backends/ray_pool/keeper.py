"""Keep a pool's actors: find out who is alive, replace who is not, add and drop by the load."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from backends.ray_pool.alive import Alive
from backends.ray_pool.changes import Changes
from backends.ray_pool.members import Member, Members
from backends.ray_pool.scaling import Bounds, Scaler
from scheduler.errors import LoadError

_log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.1
_PING_S = 0.02
_LONGEST_PAUSE_S = 30.0


class Keeper:
    """A thread that looks after ``members``; ``place`` puts a new actor on some machine."""

    def __init__(
        self,
        name: str,
        members: Members,
        place: Callable[[], Any],
        bounds: Bounds,
        changes: Changes,
    ) -> None:
        self.waiting_rows = 0  # as the scheduler said last
        self.ended = False  # nobody looks after the members any more
        self._name = name
        self._members = members
        self._new = place
        self._changes = changes
        self._least = bounds.least
        self._scaler = Scaler(bounds, time.monotonic())
        self._numbers = 0
        self._identity = ""  # of the first that loaded: the others must be the same
        self._failure = ""
        self._failures = 0
        self._not_before_s = 0.0  # when a new one may be placed
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{name}-keeper", daemon=True)

    def place(self) -> None:
        """Place the first members."""
        for _ in range(self._least):
            self._add()
        self._thread.start()

    def start(self, timeout_s: float, left: Callable[[], str]) -> None:
        """Wait until the first members are up. Raises LoadError.

        ``left`` says what the cluster has left.
        """
        give_up_s = time.monotonic() + timeout_s
        while (up := sum(each.up for each in self._members.all())) < self._least:
            if self._failure:
                raise LoadError(f"{self._name}: {self._failure}")
            if time.monotonic() > give_up_s:
                raise LoadError(
                    f"{self._name}: {up} of {self._least} were placed and loaded within"
                    f" {timeout_s:g} s (load_timeout_s); the cluster has {left()}"
                )
            self._members.wait(_LOOK_EVERY_S)

    def stop(self) -> None:
        """End the thread and every member."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        for member in self._members.all() + self._members.retired():
            self._kill(member)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._try_to_look()
                self._members.wait(_LOOK_EVERY_S)
        finally:
            self.ended = not self._stop.is_set()

    def _try_to_look(self) -> None:
        try:
            self._look(time.monotonic())
        except RayError:
            _log.exception("%s: the cluster does not do as it is asked", self._name)

    def _look(self, now: float) -> None:
        for member in self._members.retired():
            self._kill(member)
        for member in self._members.all():
            if not member.up:
                self._ask(member, now)
        lanes = [member.lanes for member in self._members.all()]
        busy = self._members.most_busy()
        change = self._scaler.observe(now, self.waiting_rows, busy, lanes)
        if change > 0 and now >= self._not_before_s:
            self._add()
        elif change < 0:
            self._members.retire()
        if change:
            _log.info("%s: %d replicas wanted", self._name, len(self._members.all()))

    def _add(self) -> None:
        self._members.add(Member(self._numbers, self._new()))
        self._numbers += 1

    def _ask(self, member: Member, now: float) -> None:
        """Find out whether ``member`` is up; while Ray makes it anew it cannot say."""
        if member.ping is None:
            member.ping = member.handle.alive.remote()
        try:
            alive: Alive = ray.get(member.ping, timeout=_PING_S)
        except ActorDiedError as error:  # for good
            self._replace(member, now, first_line(error))
        except TimeoutError:
            pass  # still loading, or no room for it
        except RayTaskError as error:  # of its own code, which is there
            self._replace(member, now, first_line(error))
        except RayError:
            member.ping = None
        else:
            member.ping = None
            self._answered(member, now, alive)

    def _answered(self, member: Member, now: float, alive: Alive) -> None:
        if alive.failure:
            self._replace(member, now, alive.failure)
            return
        self._identity = self._identity or alive.identity
        if alive.identity != self._identity:
            self._replace(member, now, f"another model than the others: {alive.identity}")
            return
        self._failures = 0
        with self._changes.turn:
            if alive.state != self._changes.state:
                self._catch_up(member)
                return
            self._members.up(member, alive)
        _log.info("%s: replica %d is up, pid %d", self._name, member.number, alive.pid)

    def _catch_up(self, member: Member) -> None:
        """Let ``member`` have the rows that others have; it answers as when asked if it is up."""
        if member.in_flight:  # on its way when it was lost; what it sees must not change under it
            return
        changes = self._changes
        member.ping = member.handle.catch_up.remote(changes.state, changes.in_force())
        _log.info("%s: replica %d catches up with the tables", self._name, member.number)

    def _replace(self, member: Member, now: float, why: str) -> None:
        """Drop ``member``, which cannot serve; another takes its place, later each time."""
        _log.error("%s: replica %d cannot serve: %s", self._name, member.number, why)
        self._failure = why
        self._failures += 1
        self._not_before_s = now + min(_LONGEST_PAUSE_S, 2.0**self._failures)
        self._kill(member)

    def _kill(self, member: Member) -> None:
        self._members.remove(member)
        ray.kill(member.handle)


def first_line(error: BaseException) -> str:
    """Return what a log line has room for of one of Ray's messages."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
