"""A version that answers nobody: it gets copies of some requests, and its scores are compared."""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from scheduler.asking import Asker
from scheduler.errors import Code, ServingError
from scheduler.observer import Observer, Shadowed, ShadowOutcome
from scheduler.routing import ShadowRoute
from scheduler.scheduler import Scheduler
from scheduler.types import Array, InferRequest, InferResponse

# A copy starts when the answer that it is compared with has left the engine for its client.
AFTER_S = 0.001
_LATE = (Code.DEADLINE_EXCEEDED, Code.OVERLOADED)


class Shadow:
    """Send a sample of the answered requests to ``scheduler`` and tell the observer what it says.

    A copy is the last in its scheduler's order, never runs on the event loop, and is dropped
    rather than kept waiting: with too many in flight, or while clients' requests take every lane.
    """

    def __init__(
        self,
        route: ShadowRoute,
        scheduler: Scheduler,
        observer: Observer,
        copies: set[asyncio.Task[None]],
    ) -> None:
        self.route = route
        self.scheduler = scheduler
        self._observer = observer
        self._copies = copies
        self._in_flight = 0
        self._random = random.Random()  # noqa: S311  # a sample is no secret
        self._last = int(scheduler.spec.properties["scheduler.priorities"]) - 1

    def offer(self, request: InferRequest, response: InferResponse, *, busy: bool) -> None:
        """Perhaps copy ``request``, which was answered by ``response``; nothing waits for it.

        ``busy`` says that the version that answered has no lane to spare.
        """
        if self._random.random() >= self.route.share or not request.rows:
            return
        if busy or self._in_flight >= self.route.max_in_flight:
            self._tell("busy" if busy else "behind")
            return
        self._in_flight += 1
        copy = asyncio.create_task(self._compare(request, response))
        self._copies.add(copy)
        copy.add_done_callback(self._done)

    def _done(self, copy: asyncio.Task[None]) -> None:
        self._in_flight -= 1
        self._copies.discard(copy)

    async def _compare(self, request: InferRequest, response: InferResponse) -> None:
        await asyncio.sleep(AFTER_S)
        copy = replace(request, version="", priority=self._last, timeout_s=self.route.timeout_s)
        try:
            theirs = await self.scheduler.infer(copy)
        except ServingError as error:
            self._tell("late" if error.code in _LATE else "failed")
            return
        differences = _differences(response.outputs, theirs.outputs)
        if differences is None:
            self._tell("incomparable")
        else:
            self._tell("compared", float(differences.max()), float(differences.mean()))

    def _tell(self, outcome: ShadowOutcome, most: float = 0.0, mean: float = 0.0) -> None:
        spec = self.scheduler.spec
        self._observer.shadowed(Shadowed(spec.name, spec.version, outcome, most, mean))


class Copying(Asker):
    """Who asked ``answering``, and behind them the ``shadow`` of it."""

    def __init__(
        self, asker: Asker, shadow: Shadow, request: InferRequest, answering: Scheduler
    ) -> None:
        self._asker = asker
        self._shadow = shadow
        self._request = request
        self._answering = answering

    @property
    def gone(self) -> bool:
        """Whether who asked is."""
        return self._asker.gone

    def answered(self, answer: InferResponse | ServingError) -> None:
        """Tell who asked, then offer the shadow a copy."""
        self._asker.answered(answer)
        if not isinstance(answer, ServingError):
            self._shadow.offer(self._request, answer, busy=self._answering.busy)


def _differences(ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> Array | None:
    """Return how far every score is from the other's, flat; None if that is not a number."""
    if any(array.shape != theirs[name].shape for name, array in ours.items()):
        return None
    with np.errstate(invalid="ignore", over="ignore"):  # infinite on both sides, say
        wide = [
            np.abs(array.astype(np.float64) - theirs[name].astype(np.float64)).ravel()
            for name, array in ours.items()
        ]
    flat = np.concatenate(wide)
    return flat if flat.size and np.isfinite(flat).all() else None
