"""A link in a chain of observers."""

from collections.abc import Mapping
from typing import Any

from scheduler.errors import Missed
from scheduler.observer import (
    Answered,
    Computed,
    DropReason,
    Observer,
    ReloadOutcome,
    Shadowed,
    Updated,
)
from scheduler.types import ModelSpec, Trace


class Following(Observer):
    """Pass everything on to ``following``; subclasses also look at some of it."""

    def __init__(self, following: Observer) -> None:
        self._following = following

    def loaded(self, spec: ModelSpec, lanes: int) -> None:
        """Pass it on."""
        self._following.loaded(spec, lanes)

    def reloaded(self, model: str, outcome: ReloadOutcome) -> None:
        """Pass it on."""
        self._following.reloaded(model, outcome)

    def traced(self, traceparent: str, tracestate: str, began_s: float) -> Trace | None:
        """Pass it on."""
        return self._following.traced(traceparent, tracestate, began_s)

    def answered(self, record: Answered) -> None:
        """Pass it on."""
        self._following.answered(record)

    def keyed(self, key: str, outcome: str) -> None:
        """Pass it on."""
        self._following.keyed(key, outcome)

    def queued(self, spec: ModelSpec, rows: int, requests: int, batches: int) -> None:
        """Pass it on."""
        self._following.queued(spec, rows, requests, batches)

    def dropped(self, model: str, reason: DropReason) -> None:
        """Pass it on."""
        self._following.dropped(model, reason)

    def missed(self, model: str, missed: tuple[Missed, ...]) -> None:
        """Pass it on."""
        self._following.missed(model, missed)

    def computed(self, record: Computed) -> None:
        """Pass it on."""
        self._following.computed(record)

    def shadowed(self, record: Shadowed) -> None:
        """Pass it on."""
        self._following.shadowed(record)

    def updated(self, record: Updated) -> None:
        """Pass it on."""
        self._following.updated(record)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Return what ``following`` exposes."""
        return self._following.exposition(accept)

    async def scraped(self, accept: str) -> tuple[bytes, str]:
        """Return what ``following`` exposes."""
        return await self._following.scraped(accept)

    def recent(self, model: str, since: int) -> Mapping[str, Any]:
        """Return what ``following`` remembers."""
        return self._following.recent(model, since)
