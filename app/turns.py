"""Work on models by name: one thing at a time each, and loads that wait are shared."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TypeAlias

from scheduler.errors import Code, ServingError


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nothing was done."""

    code: Code
    detail: str


Work: TypeAlias = Callable[[], Coroutine[None, None, Refusal | None]]
UnderWay: TypeAlias = asyncio.Task[Refusal | None]


class Turns:
    """Begin work on a model once the work before it is over; it goes on if who asked leaves."""

    def __init__(self) -> None:
        self._last: dict[str, UnderWay] = {}  # by model, while anything of it is under way
        self._next: dict[str, UnderWay] = {}  # a load that waits for its turn, by model
        self._under_way: set[UnderWay] = set()

    @property
    def busy(self) -> bool:
        """Whether anything is under way."""
        return bool(self._under_way)

    def alone(self, model: str, work: Work) -> UnderWay:
        """Do ``work`` when it is its turn."""
        return self._begin(model, work)

    def shared(self, model: str, work: Work) -> UnderWay:
        """Do ``work`` when it is its turn, or join what waits for its turn already."""
        if model not in self._next:
            self._next[model] = self._begin(model, work, shared=True)
        return self._next[model]

    def _begin(self, model: str, work: Work, *, shared: bool = False) -> UnderWay:
        async def in_turn(before: UnderWay | None) -> Refusal | None:
            if before is not None:
                await asyncio.wait([before])
            if shared:  # who asks from here on wants work that begins later
                del self._next[model]
            return await work()

        def over(task: UnderWay) -> None:
            self._under_way.discard(task)
            if self._last.get(model) is task:  # clients choose the names: none is kept
                del self._last[model]

        task = asyncio.create_task(in_turn(self._last.get(model)))
        self._last[model] = task
        self._under_way.add(task)
        task.add_done_callback(over)
        return task


async def done(work: UnderWay) -> None:
    """Wait for ``work``, which goes on if the caller is cancelled. Raises ServingError."""
    refusal = await asyncio.shield(work)
    if refusal is not None:
        raise ServingError(refusal.code, refusal.detail)
