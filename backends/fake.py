"""A tiny deterministic DLRM stand-in: for tests of the shell, and for measuring it without a model.

A row's score is the weighted sum of its dense features and ids, so a swapped row, feature or
neighbour shows. ``before_run`` is where tests hold, delay or fail a run.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from backends.ids.declared import Declared, make_rules
from backends.jagged import JaggedLayout
from scheduler.backend import Checked, Compute
from scheduler.types import Array, Batch, InferRequest, ModelSpec, TensorSpec


@dataclass(frozen=True, slots=True)
class FakeOptions:
    """Shape the fake model."""

    name: str = field(default="fake", metadata={"help": "model name"})
    dense_features: int = field(default=3, metadata={"help": "dense features a row"})
    sparse_features: int = field(default=2, metadata={"help": "id features a row"})
    table_rows: int = field(default=1000, metadata={"help": "rows of each embedding table"})
    lanes: int = field(default=1, metadata={"help": "batches computed at once"})
    max_batch_rows: int = field(default=1024, metadata={"help": "rows in one batch"})
    remembered_batches: int = field(
        default=10_000, metadata={"help": "batches kept to be looked at; 0 where memory counts"}
    )
    compute_s: float = field(default=0.0, metadata={"help": "seconds one batch takes"})
    ids: tuple[str, ...] = field(
        default=(),
        metadata={"help": "FEATURE=POLICY (*: all others): ids without a row; see docs/ids.md"},
    )

    def __post_init__(self) -> None:
        """Refuse shapes that no model has. Raises ValueError."""
        for name in ("dense_features", "sparse_features", "table_rows", "lanes", "max_batch_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.remembered_batches < 0:
            raise ValueError(f"remembered_batches must be 0 or more, got {self.remembered_batches}")
        if not 0 <= self.compute_s < math.inf:
            raise ValueError(f"compute_s must be 0 or more, got {self.compute_s:g}")


class FakeBackend:
    """Score without a model. ``batches`` is what was run lately, in order."""

    Options = FakeOptions

    def __init__(self, options: FakeOptions) -> None:
        features = tuple(f"cat_{number}" for number in range(options.sparse_features))
        self._options = options
        self._layout = JaggedLayout(
            "id_list_features", features, np.full(len(features), options.table_rows, np.int64)
        )
        self._rules = make_rules(self._layout, Declared(), ())
        self.batches: deque[Batch] = deque(maxlen=options.remembered_batches)
        self.before_run: Callable[[Batch], None] = lambda batch: time.sleep(options.compute_s)

    @property
    def spec(self) -> ModelSpec:
        """A DLRM's inputs: dense rows and one jagged id list a feature."""
        features = self._layout.features
        return ModelSpec(
            name=self._options.name,
            version="1",
            inputs=(
                TensorSpec(
                    "float_features", np.dtype(np.float32), ("rows", self._options.dense_features)
                ),
                TensorSpec(
                    self._layout.lengths, np.dtype(np.int64), (len(features), "rows"), features
                ),
                TensorSpec(
                    self._layout.values, np.dtype(np.int64), ("*",), lengths=self._layout.lengths
                ),
            ),
            outputs=(TensorSpec("default", np.dtype(np.float32), ("rows",)),),
            max_batch_rows=self._options.max_batch_rows,
            properties={"ids": self._rules.text},
            id_policies=self._rules.policies,
            vocabularies=self._rules.vocabularies,
        )

    @property
    def lanes(self) -> int:
        """Batches computed at once."""
        return self._options.lanes

    def load(self) -> None:
        """Read the option ``ids``. Raises LoadError."""
        self._rules = make_rules(self._layout, Declared(), self._options.ids)

    def check(self, request: InferRequest) -> Checked | None:
        """Make rows of ids; refuse those outside the tables. Raises ServingError."""
        return self._rules.check(request)

    def checker(self) -> Callable[[InferRequest], Checked | None]:
        """Return what checks, without the rest."""
        return self._rules.check

    def prepare(self, batch: Batch) -> Compute:
        """Gather nothing; return ``run`` for ``batch``."""
        return partial(self.run, batch)

    def run(self, batch: Batch) -> Mapping[str, Array]:
        """Score every row of ``batch``."""
        self.batches.append(batch)
        self.before_run(batch)
        return {"default": np.concatenate([self.score(request) for request in batch.requests])}

    def score(self, request: InferRequest) -> Array:
        """Return what ``run`` answers for ``request``, (rows,) float32."""
        dense = np.asarray(request.inputs["float_features"], np.float64)
        lengths = np.asarray(request.inputs[self._layout.lengths], np.int64)
        ids = np.asarray(request.inputs[self._layout.values], np.int64)
        ends = np.cumsum(lengths).reshape(lengths.shape)
        totals = np.concatenate([[0], np.cumsum(ids)])
        bags = totals[ends] - totals[ends - lengths]
        weights = np.arange(1, len(self._layout.features) + 1)
        scores = dense @ np.arange(1.0, dense.shape[1] + 1) + weights @ bags
        return np.asarray(scores, np.float32)

    def close(self) -> None:
        """Do nothing."""
