"""Bound the answers that clients do not read, over all connections of a transport together.

One connection is bounded by its protocol, but there may be thousands. Connections report what
they have written and not yet got rid of, as an upper bound; once the bounds exceed the limit each
is asked for the exact number, and those that owe most are cut until half of the limit is free. So
a client that reads costs one addition an answer, and is never cut for others that don't.
"""

import logging
from typing import Protocol

logger = logging.getLogger(__name__)


class Debtor(Protocol):
    """A connection with answers that its client has yet to take."""

    @property
    def unsent_bytes(self) -> int:
        """What is held for it now."""

    def cut_unread(self) -> None:
        """Close the connection at once and drop what is held for it."""


class Unsent:
    """Counts what connections owe, and cuts those that owe most."""

    def __init__(self, max_unsent_bytes: int) -> None:
        self._limit_bytes = max_unsent_bytes
        self._owed_bytes: dict[Debtor, int] = {}
        self._total_bytes = 0

    def add(self, debtor: Debtor, size_bytes: int) -> None:
        """Count ``size_bytes`` more that ``debtor`` may hold; perhaps cut it, or others."""
        self._owed_bytes[debtor] = self._owed_bytes.get(debtor, 0) + size_bytes
        self._total_bytes += size_bytes
        if self._total_bytes > self._limit_bytes:
            self._settle()

    def forget(self, debtor: Debtor) -> None:
        """Count nothing for ``debtor`` any more: it is closed."""
        self._total_bytes -= self._owed_bytes.pop(debtor, 0)

    def _settle(self) -> None:
        exact = {debtor: debtor.unsent_bytes for debtor in self._owed_bytes}
        self._owed_bytes = {debtor: owed for debtor, owed in exact.items() if owed}
        self._total_bytes = sum(exact.values())
        if self._total_bytes <= self._limit_bytes:
            return
        by_debt = sorted(self._owed_bytes, key=self._owed_bytes.__getitem__)
        while self._total_bytes > self._limit_bytes // 2:
            debtor = by_debt.pop()
            logger.warning(
                "cut a connection that has not read %d bytes of its answers: all together hold %d,"
                " above the limit of %d (max_unsent_bytes)",
                self._owed_bytes[debtor], self._total_bytes, self._limit_bytes,
            )  # fmt: skip
            self.forget(debtor)
            debtor.cut_unread()
