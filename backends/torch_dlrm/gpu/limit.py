"""How many rows a batch may have after the device ran out of memory."""

import logging

from scheduler.errors import Code, ServingError

_log = logging.getLogger(__name__)

# Batches that must go well in a row before twice as many rows are tried again.
_PATIENCE = 256


class RowLimit:
    """Halve when memory runs out, double after a while; shared by a model's lanes.

    Lanes may call it at once: the worst that a lost update does is a limit that moves once less.
    """

    def __init__(self, most_rows: int) -> None:
        self._most_rows = most_rows
        self._successes = 0
        self.rows = most_rows

    def check(self, rows: int) -> None:
        """Refuse a batch that is too large now. Raises ServingError.

        The scheduler then runs its halves, and only a request that is too large alone is told.
        """
        if rows > self.rows:
            raise out_of_memory(rows)

    def shrink(self, rows: int) -> None:
        """Learn that ``rows`` were too many."""
        self._successes = 0
        self.rows = max(1, min(self.rows, rows) // 2)
        _log.warning("the GPU has no memory for %d rows; at most %d for now", rows, self.rows)

    def succeeded(self) -> None:
        """Learn that a batch went well."""
        if self.rows >= self._most_rows:
            return
        self._successes += 1
        if self._successes >= _PATIENCE:
            self._successes = 0
            self.rows = min(self._most_rows, 2 * self.rows)
            _log.info("trying batches of %d rows on the GPU again", self.rows)


def out_of_memory(rows: int) -> ServingError:
    """Return the answer to a request that the device has no memory for."""
    return ServingError(Code.OVERLOADED, f"the GPU has no memory for a batch of {rows} rows now")
