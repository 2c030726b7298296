"""Embedding updates for every replica of a pool."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayError

from backends.ray_pool.members import Member
from backends.ray_pool.pool import Pool
from backends.ray_pool.refused import Refused
from scheduler.backend import TableRows, TableSpec
from scheduler.errors import Code, ServingError

_log = logging.getLogger(__name__)

# What is larger is put into shared memory once, not once for each replica.
_INLINE_BYTES = 100_000


class Fanout:
    """Replace rows of ``tables`` in every replica of ``pool``; one call at a time.

    No batch is sent between the first replica's write and the last one's, so that no request sees
    rows as they were after another has seen them as they are. A replica that does not follow is
    asked nothing until it has caught up. Where the pool is not ``alone``, others write what it made
    ready, whether or not any of its replicas still can: all of them catch up then.
    """

    def __init__(
        self,
        pool: Pool,
        tables: tuple[TableSpec, ...] | Refused,
        patience_s: float,
        *,
        alone: bool = True,
    ) -> None:
        self.patience_s = patience_s
        self._pool = pool
        self._tables = tables
        self._alone = alone

    def update_tables(self) -> tuple[TableSpec, ...]:
        """Return the tables. Raises ServingError (UNSUPPORTED) where the replicas would."""
        if isinstance(self._tables, Refused):
            raise self._tables.error()
        return self._tables

    def prepare_update(self, tables: Sequence[TableRows]) -> Callable[[], None]:
        """Let every replica that is up make its rows; return what lets all write them.

        Raises ServingError: what a replica refuses, or UNAVAILABLE.
        """
        state, travels = self._pool.changes.number(), _travels(tables)
        answers = self._ask(lambda handle: handle.prepare_update.remote(state, travels))
        for answer in answers.values():
            if isinstance(answer, Refused):
                raise answer.error()
        return partial(self._write, state, tuple(tables))

    def _write(self, state: int, tables: tuple[TableRows, ...]) -> None:
        with self._pool.changes.turn, self._pool.held():
            self._done(lambda handle: handle.commit_update.remote(state))
            self._pool.changes.add(state, tables)

    def roll_back(self) -> int:
        """Restore what was loaded; return how many rows had been replaced. Raises ServingError."""
        state = self._pool.changes.number()
        with self._pool.changes.turn, self._pool.held():
            done = self._done(lambda handle: handle.roll_back.remote(state))
            self._pool.changes.clear(state)
        return int(max(done, default=0))

    def check_up(self) -> None:
        """Raise ServingError (UNAVAILABLE) unless a replica is up."""
        if not self._pool.up():
            raise _nobody()

    def _done(self, send: Callable[[Any], Any]) -> list[Any]:
        try:
            return self._by_some(self._ask(send))
        except ServingError as error:
            if self._alone:
                raise
            _log.warning("every replica has to catch up: %s", error)
            return []

    def _by_some(self, answers: Mapping[Member, Any]) -> list[Any]:
        """Return what was answered by who did it; the others are to catch up.

        Raises ServingError if nobody did: then nothing has changed.
        """
        refused = {each: it for each, it in answers.items() if isinstance(it, Refused)}
        for member in refused:
            self._pool.behind(member)
        done = [answer for answer in answers.values() if not isinstance(answer, Refused)]
        if not done:
            for answer in refused.values():
                raise answer.error()
        return done

    def _ask(self, send: Callable[[Any], Any]) -> dict[Member, Any]:
        """Ask every replica that is up; return what each answers. Raises ServingError."""
        give_up_s = time.monotonic() + self.patience_s
        asked = {member: send(member.handle) for member in self._pool.up()}
        found: dict[Member, Any] = {}
        for member, answer in asked.items():
            try:
                found[member] = ray.get(answer, timeout=max(0.0, give_up_s - time.monotonic()))
            except RayError as error:
                self._pool.lost(member, error)
        if not found:
            raise _nobody()
        return found


def _nobody() -> ServingError:
    return ServingError(Code.UNAVAILABLE, "not updated: no replica is up", retry_after_s=1.0)


def _travels(tables: Sequence[TableRows]) -> Any:
    size_bytes = sum(each.values.nbytes + each.rows.nbytes for each in tables)
    return ray.put(tuple(tables)) if size_bytes > _INLINE_BYTES else tuple(tables)
