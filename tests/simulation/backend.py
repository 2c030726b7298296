"""A fake backend that stops inside every step and fails as its requests, or the dice, say."""

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np

from backends.fake import FakeBackend, FakeOptions
from scheduler.backend import Compute
from scheduler.errors import Code, DeviceLostError, LoadError, ServingError
from scheduler.types import Array, Batch, InferRequest, ModelSpec, TensorSpec
from tests.simulation.setting import Risks
from tests.simulation.threads import Crew
from tests.simulation.traffic import faulty

FLOAT = np.dtype(np.float32)
OUTPUTS = (TensorSpec("default", FLOAT, ("rows",)), TensorSpec("double", FLOAT, ("rows",)))
BIAS = TensorSpec("bias", FLOAT, ("rows",), optional=True)


class Journal(Protocol):
    """What the backend tells."""

    def require(self, holds: bool, wrong: str) -> None:
        """Something is ``wrong`` unless it ``holds``."""

    def began(self, backend: "SimulatedBackend", batch: Batch, *, inline: bool) -> None:
        """``batch`` has reached the backend on a lane, or ``inline`` on the event loop."""

    def ended(self, backend: "SimulatedBackend", batch: Batch, *, failed: bool) -> None:
        """The same ``batch`` has been computed, or has failed."""

    def fatal(self, backend: "SimulatedBackend", reason: str) -> None:
        """The backend is about to die."""


class SimulatedBackend(FakeBackend):
    """Score as the fake does, plus an optional bias; two outputs."""

    def __init__(
        self, options: FakeOptions, version: str, crew: Crew, dice: random.Random, risks: Risks
    ) -> None:
        super().__init__(options)
        self.journal: Journal
        self.version = version
        self.loaded = self.closed = False
        self.loaded_s = math.inf
        self.running = 0
        self._crew = crew
        self._dice = dice
        self._risks = risks
        plain = super().spec
        inputs = (*plain.inputs, BIAS)
        self._spec = replace(plain, version=version, inputs=inputs, outputs=OUTPUTS)

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    def load(self) -> None:
        self.journal.require(not self.loaded, "loaded twice")
        self._crew.park("load")
        if self._dice.random() < self._risks.load:
            raise self._dice.choice([LoadError("on purpose"), RuntimeError("on purpose")])
        self.loaded, self.loaded_s = True, self._crew.now()

    def close(self) -> None:
        self.journal.require(self.loaded and not self.closed, "closed twice, or before load")
        self.journal.require(not self.running, "closed under a running batch")
        self.closed = True

    def prepare(self, batch: Batch) -> Compute:
        thread = self._crew.current
        ahead = thread is not None and thread.name.endswith("-gather")
        if not ahead:
            self._begin(batch)
        try:
            if self._dice.random() < 0.3:
                self._crew.park("gather ahead" if ahead else "gather")
            if faulty(batch) == "gathering":
                raise RuntimeError("on purpose")
        except BaseException:
            if not ahead:
                self._end(batch, failed=True)
            raise
        return partial(self._compute, batch, begun=not ahead)

    def score(self, request: InferRequest) -> Array:
        scores = np.asarray(super().score(request), np.float32)
        return scores + np.asarray(request.inputs.get("bias", 0), np.float32)

    def _begin(self, batch: Batch) -> None:
        self.running += 1
        self.journal.began(self, batch, inline=self._crew.current is None)

    def _end(self, batch: Batch, *, failed: bool) -> None:
        self.running -= 1
        self.journal.ended(self, batch, failed=failed)

    def _compute(self, batch: Batch, *, begun: bool) -> Mapping[str, Array]:
        if not begun:
            self._begin(batch)
        failed = True
        try:
            self._crew.park("compute")
            self._may_fail(batch)
            failed = faulty(batch) != ""
            return self._outputs(batch)
        finally:
            self._end(batch, failed=failed)

    def _may_fail(self, batch: Batch) -> None:
        throw = self._dice.random()
        if len(batch.requests) > 1 and throw < self._risks.whole:
            raise RuntimeError("the whole batch")
        if throw > 1 - self._risks.lost:
            self.journal.fatal(self, "device lost")
            raise DeviceLostError("on purpose")
        if self._dice.random() < self._risks.dies:
            self.journal.fatal(self, "lane died")
            raise SystemExit

    def _outputs(self, batch: Batch) -> Mapping[str, Array]:
        scores = np.concatenate([self.score(request) for request in batch.requests])
        outputs = {"default": scores, "double": scores * 2}
        match faulty(batch):
            case "raises":
                raise RuntimeError("on purpose")
            case "refuses":
                raise ServingError(Code.UNSUPPORTED, "on purpose")
            case "short":
                return outputs | {"double": scores[:-1]}
            case "dtype":
                return outputs | {"default": scores.astype(np.float64)}
            case "name":
                return {"default": scores, "twice": scores}
        return outputs
