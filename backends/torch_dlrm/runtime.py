"""Run a loaded DLRM on its lanes, with host buffers that are used again."""

import queue
from functools import partial
from typing import Any

from backends.dlrm.turnstile import Turnstile
from backends.torch_dlrm.serving import Gather, RunGathered, Serving
from scheduler.backend import Compute
from scheduler.errors import ServingError
from scheduler.types import Array, Batch


class Runtime:
    """Run what serves a model, on as many of its lanes at once as it has.

    Host buffers are reused: one set for each batch that computes, and one for each that is
    gathered meanwhile.
    """

    def __init__(self, serving: Serving, outputs: tuple[str, ...]) -> None:
        self._outputs = outputs
        self._make_gather = serving.make_gather
        self.lanes: Turnstile[RunGathered] = Turnstile(serving.lanes)
        self._gathers: queue.SimpleQueue[Gather] = queue.SimpleQueue()
        self._gathers.put(self._make_gather())
        for _ in serving.lanes:
            self._gathers.put(self._make_gather())

    def prepare(self, batch: Batch) -> Compute:
        """Gather ``batch``; return what computes the wanted outputs, in memory of their own.

        A result that is never called gives its buffers to the garbage collector; others are made.
        """
        try:
            gather = self._gathers.get_nowait()
        except queue.Empty:
            gather = self._make_gather()
        try:
            return partial(self._compute, gather, gather(batch))
        except ServingError:  # too large just now, and its buffers are as good as before
            self._gathers.put(gather)
            raise

    def _compute(self, gather: Gather, gathered: Any) -> dict[str, Array]:
        home, lane = self.lanes.take()
        try:
            outputs = lane(gathered)
        finally:
            home.put(lane)
            self._gathers.put(gather)
        return {name: _by_row(outputs[name]) for name in self._outputs or outputs}


def _by_row(scores: Array) -> Array:
    """Turn (rows, 1) into (rows,): one score a row, whichever way it was packaged."""
    return scores[:, 0] if scores.ndim == 2 and scores.shape[1] == 1 else scores
