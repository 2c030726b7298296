"""The answers owed: every admitted request is here until its one answer is given or unwanted."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from scheduler.errors import Code, ServingError
from scheduler.types import InferResponse, Timing
from scheduler.waiting import Piece, Waiting


class _Owed:
    """One answer still to be given: who awaits it, until when, and the parts that are here."""

    __slots__ = ("future", "parts", "rows", "timer")

    def __init__(
        self, future: asyncio.Future[InferResponse], timer: asyncio.TimerHandle | None
    ) -> None:
        self.future = future
        self.timer = timer
        self.parts: list[tuple[Piece, InferResponse]] = []
        self.rows = 0  # of the parts


class Replies:
    """Map each admitted request to the future its task awaits, and to its deadline's timer.

    ``expire`` is called on the loop when a deadline passes; the timer goes with the answer, so
    none is left over.
    """

    def __init__(self, expire: Callable[[Waiting], None]) -> None:
        self._expire = expire
        self._loop = asyncio.get_running_loop()
        self._owed: dict[Waiting, _Owed] = {}
        self._none_owed: asyncio.Event | None = None  # made by who waits for it

    def __len__(self) -> int:
        return len(self._owed)

    def open(self, waiting: Waiting) -> asyncio.Future[InferResponse]:
        """Owe ``waiting`` an answer; return the future that will hold it."""
        future: asyncio.Future[InferResponse] = self._loop.create_future()
        timer = None
        if waiting.deadline_s < math.inf:
            timer = self._loop.call_at(waiting.deadline_s, self._expire, waiting)
        self._owed[waiting] = _Owed(future, timer)
        return future

    def give(self, waiting: Waiting, answer: InferResponse | ServingError) -> None:
        """Give ``waiting`` its answer, if one is still owed."""
        future = self._close(waiting)
        if future is None or future.done():
            return
        if isinstance(answer, ServingError):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    def give_part(self, piece: Piece, answer: InferResponse | ServingError) -> None:
        """Give what ``piece`` came to: the last one answers the request, or the first to fail."""
        waiting = piece.waiting
        if piece.whole or isinstance(answer, ServingError):
            self.give(waiting, answer)
        elif waiting in self._owed:
            owed = self._owed[waiting]
            owed.parts.append((piece, answer))
            owed.rows += piece.rows
            if owed.rows == waiting.request.rows:
                self.give(waiting, _joined(owed.parts))

    def give_all(self, code: Code, detail: str) -> None:
        """Give everybody the same error."""
        for waiting in tuple(self._owed):
            self.give(waiting, ServingError(code, detail))

    def owed(self, waiting: Waiting) -> bool:
        """Return whether ``waiting`` still wants its answer: its task may be cancelled already."""
        owed = self._owed.get(waiting)
        return owed is not None and not owed.future.done()

    def abandon(self, waiting: Waiting) -> None:
        """Owe ``waiting`` nothing: its task was cancelled."""
        future = self._close(waiting)
        if future is not None:
            future.cancel()

    async def all_given(self, timeout_s: float) -> bool:
        """Wait until nothing is owed; return False if that takes longer than ``timeout_s``."""
        if not self._owed:  # wait_for(..., 0) would not even look
            return True
        self._none_owed = asyncio.Event()
        try:
            await asyncio.wait_for(self._none_owed.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def _close(self, waiting: Waiting) -> asyncio.Future[InferResponse] | None:
        owed = self._owed.pop(waiting, None)
        if self._none_owed is not None and not self._owed:
            self._none_owed.set()
        if owed is None:
            return None
        if owed.timer is not None:
            owed.timer.cancel()
        return owed.future


def _joined(parts: list[tuple[Piece, InferResponse]]) -> InferResponse:
    """Return the one answer whose ``parts`` came in any order."""
    ordered = [part for _, part in sorted(parts, key=lambda part: part[0].start)]
    timings = [part.timing for part in ordered]
    names = ordered[0].outputs
    return replace(
        ordered[0],
        outputs={name: np.concatenate([part.outputs[name] for part in ordered]) for name in names},
        timing=Timing(
            queue_s=min(timing.queue_s for timing in timings),
            gather_s=sum(timing.gather_s for timing in timings),
            compute_s=sum(timing.compute_s for timing in timings),
            batch_rows=max(timing.batch_rows for timing in timings),
        ),
    )
