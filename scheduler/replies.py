"""The answers owed: every admitted request is here until its one answer is given or unwanted."""

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from scheduler.asking import Asked, Asker
from scheduler.errors import Code, ServingError
from scheduler.types import InferResponse, Timing
from scheduler.waiting import Piece, Waiting

logger = logging.getLogger(__name__)


class Owed(Asked):
    """One answer still to be given: who asked, until when, and the parts that are here."""

    def __init__(
        self,
        waiting: Waiting,
        asker: Asker,
        version: str,
        timer: asyncio.TimerHandle | None,
        abandon: Callable[[Waiting], None],
    ) -> None:
        super().__init__(version)
        self.waiting = waiting
        self.asker = asker
        self.timer = timer
        self.parts: list[tuple[Piece, InferResponse]] = []
        self.rows = 0  # of the parts
        self._abandon = abandon

    def cancel(self) -> None:
        """Give no answer, and compute none if that has not begun."""
        self._abandon(self.waiting)


class Replies:
    """Map each admitted request to who waits for its answer, and to its deadline's timer.

    ``expire`` is called on the loop when a deadline passes; the timer goes with the answer, so
    none is left over. ``abandon`` is called when the asker gives up.
    """

    def __init__(
        self, version: str, expire: Callable[[Waiting], None], abandon: Callable[[Waiting], None]
    ) -> None:
        self._version = version
        self._expire = expire
        self._abandon = abandon
        self._loop = asyncio.get_running_loop()
        self._owed: dict[Waiting, Owed] = {}
        self._none_owed: asyncio.Event | None = None  # made by who waits for it

    def __len__(self) -> int:
        return len(self._owed)

    def open(self, waiting: Waiting, asker: Asker) -> Owed:
        """Owe ``asker`` the answer to ``waiting``."""
        timer = None
        if waiting.deadline_s < math.inf:
            timer = self._loop.call_at(waiting.deadline_s, self._expire, waiting)
        owed = self._owed[waiting] = Owed(waiting, asker, self._version, timer, self._abandon)
        return owed

    def give(self, waiting: Waiting, answer: InferResponse | ServingError) -> None:
        """Give ``waiting`` its answer, if one is still owed."""
        asker = self._close(waiting)
        if asker is None or asker.gone:
            return
        if isinstance(answer, ServingError):
            answer.version = self._version
        try:
            asker.answered(answer)
        except Exception:  # a fault of one transport's must fail neither the model nor neighbours
            logger.exception("request %s: the answer was not taken", waiting.request.id)

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
        return owed is not None and not owed.asker.gone

    def abandon(self, waiting: Waiting) -> None:
        """Owe ``waiting`` nothing: it was cancelled."""
        self._close(waiting)

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

    def _close(self, waiting: Waiting) -> Asker | None:
        owed = self._owed.pop(waiting, None)
        if self._none_owed is not None and not self._owed:
            self._none_owed.set()
        if owed is None:
            return None
        if owed.timer is not None:
            owed.timer.cancel()
        return owed.asker


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
