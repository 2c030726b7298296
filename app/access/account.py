"""What one key has left of its limits."""

import contextlib
from collections.abc import Callable

from app.access.bucket import Bucket
from app.access.keys import KeyOptions
from app.access.ledger import Ledger, tag_of
from scheduler.errors import Code, ServingError


class Account:
    """The requests and rows of the key ``name``, whichever wire they come over.

    With a ``ledger``, whichever process they come to.
    """

    def __init__(
        self,
        name: str,
        options: KeyOptions,
        clock: Callable[[], float],
        ledger: Ledger | None = None,
    ) -> None:
        self.name = name
        self.options = options
        self._clock = clock
        self._requests = _bucket(options.requests_per_s, options.burst_s, clock())
        self._rows = _bucket(options.rows_per_s, options.burst_s, clock())
        self._buckets = [each for each in (self._requests, self._rows) if each is not None]
        self._ledger = ledger if self._buckets else None
        self._tag = tag_of(name, options.requests_per_s, options.rows_per_s, options.burst_s)

    def begin(self) -> None:
        """Count a request, unless it has to wait, or its first row would have to.

        Raises ServingError (RATE_LIMITED).
        """
        with self._held():
            if self._rows is not None:
                self._check(self._rows, 1, "rows", self.options.rows_per_s)
            if self._requests is not None:
                self._check(self._requests, 1, "requests", self.options.requests_per_s)
                self._requests.take(1)

    def spend(self, rows: int) -> None:
        """Count rows. Raises ServingError (RATE_LIMITED)."""
        if self._rows is not None:
            with self._held():
                self._check(self._rows, rows, "rows", self.options.rows_per_s)
                self._rows.take(rows)

    def _held(self) -> contextlib.AbstractContextManager[None]:
        if self._ledger is None:
            return contextlib.nullcontext()
        return self._ledger.held(self._tag, self._buckets, self._clock())

    def _check(self, bucket: Bucket, amount: int, unit: str, rate: float) -> None:
        wait_s = bucket.wait_s(amount, self._clock())
        if wait_s > 0:
            raise ServingError(
                Code.RATE_LIMITED,
                f"the key {self.name} may ask for {rate:g} {unit} a second ({unit}_per_s), and"
                f" has used them up; try again in {wait_s:.3g} s",
                retry_after_s=wait_s,
            )


def _bucket(rate: float, burst_s: float, now_s: float) -> Bucket | None:
    # Less than one whole request at a time would let none through.
    return Bucket(rate, max(1.0, rate * burst_s), now_s) if rate else None
