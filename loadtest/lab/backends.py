"""Backends to measure with: one that takes no time, one of set cost, one that traces another."""

import itertools
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias

import numpy as np

from backends.fake import FakeBackend, FakeOptions
from scheduler.backend import Backend, Checked, Compute
from scheduler.types import Array, Batch, InferRequest, ModelSpec, TensorSpec


class StampingBackend(FakeBackend):
    """Compute nothing; each row's output is when its batch began and ended, (rows, 2) seconds."""

    def __init__(self, options: FakeOptions) -> None:
        super().__init__(options)
        stamps = TensorSpec("default", np.dtype(np.float64), ("rows", 2))
        # Made once, as a real backend's: the fake makes its own anew at every look (10 us).
        self._spec = replace(super().spec, outputs=(stamps,))

    @property
    def spec(self) -> ModelSpec:
        """A DLRM's inputs, and the two stamps."""
        return self._spec

    def check(self, request: InferRequest) -> Checked | None:
        """Accept everything: what checking ids costs is the backend's."""
        return None

    def prepare(self, batch: Batch) -> Compute:
        """Remember when the batch began."""
        return partial(self._stamp, batch.rows, time.perf_counter())

    def _stamp(self, rows: int, began_s: float) -> Mapping[str, Array]:
        if self._options.compute_s:
            time.sleep(self._options.compute_s)
        stamps = np.empty((rows, 2))
        stamps[:, 0], stamps[:, 1] = began_s, time.perf_counter()
        return {"default": stamps}


class CostBackend(FakeBackend):
    """Score as the fake does, in ``batch_s`` a batch and ``row_s`` a row; keep no batches.

    It sleeps, as a GPU's thread does: the processors stay with the load generator and the loop.
    """

    def __init__(self, options: FakeOptions, batch_s: float, row_s: float) -> None:
        super().__init__(options)
        self.batches = deque(maxlen=0)
        self.before_run = lambda batch: time.sleep(batch_s + row_s * batch.rows)


Step: TypeAlias = Literal["gather", "compute"]


@dataclass(frozen=True, slots=True)
class Interval:
    """One step of one batch: ``batch`` counts the batches, times are perf_counter's (seconds)."""

    kind: Step
    thread: str
    batch: int
    rows: int
    begin_s: float
    end_s: float


class Lent:
    """Lend one loaded backend to several schedulers: it is neither loaded nor closed here."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @property
    def spec(self) -> ModelSpec:
        """What the model takes and gives."""
        return self._backend.spec

    @property
    def lanes(self) -> int:
        """How many batches are computed at once."""
        return self._backend.lanes

    def load(self) -> None:
        """Do nothing: it is loaded."""

    def check(self, request: InferRequest) -> Checked | None:
        """Let the backend refuse."""
        return self._backend.check(request)

    def prepare(self, batch: Batch) -> Compute:
        """Let the backend gather."""
        return self._backend.prepare(batch)

    def close(self) -> None:
        """Do nothing: others still use it."""


class TracingBackend(Lent):
    """Run a lent backend; ``intervals`` says when each batch was gathered and computed."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._numbers = itertools.count()
        self.intervals: list[Interval] = []

    def prepare(self, batch: Batch) -> Compute:
        """Gather ``batch`` and note when."""
        number, begin_s = next(self._numbers), time.perf_counter()
        compute = super().prepare(batch)
        self._note("gather", number, batch.rows, begin_s)
        return partial(self._compute, compute, number, batch.rows)

    def _compute(self, compute: Compute, number: int, rows: int) -> Mapping[str, Array]:
        begin_s = time.perf_counter()
        outputs = compute()
        self._note("compute", number, rows, begin_s)
        return outputs

    def _note(self, kind: Step, number: int, rows: int, begin_s: float) -> None:
        thread, end_s = threading.current_thread().name, time.perf_counter()
        self.intervals.append(Interval(kind, thread, number, rows, begin_s, end_s))
