"""Labelled rows in the layout of a request, taken and thinned without a loop."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.dlrm.gather import DENSE, IDS
from scheduler.types import Array

LENGTHS, VALUES = f"{IDS}.lengths", f"{IDS}.values"
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """``dense`` (rows, columns), ``lengths`` (features, rows), ``values`` key-major, ``labels``.

    Labels are 0 or 1, one a row.
    """

    dense: Floats
    lengths: Ints
    values: Ints
    labels: Floats

    def __len__(self) -> int:
        return len(self.dense)

    @property
    def inputs(self) -> dict[str, Array]:
        """The rows as the tensors of one request."""
        return {DENSE: self.dense, LENGTHS: self.lengths, VALUES: self.values}

    def moments(self) -> tuple[Floats, Floats]:
        """Return mean and standard deviation of every dense column."""
        return self.dense.mean(axis=0), self.dense.std(axis=0)

    def take(self, index: Ints) -> "Rows":
        """Return the rows at ``index``, in its order."""
        features, rows = self.lengths.shape
        bags = (np.arange(features)[:, None] * rows + index).ravel()
        lengths = self.lengths.ravel()[bags]
        starts = (np.cumsum(self.lengths.ravel()) - self.lengths.ravel())[bags]
        before = np.cumsum(lengths) - lengths
        places = np.repeat(starts - before, lengths) + np.arange(lengths.sum())
        return Rows(
            self.dense[index],
            lengths.reshape(features, len(index)),
            self.values[places],
            self.labels[index],
        )

    def part(self, start: int, stop: int) -> "Rows":
        """Return the rows from ``start`` to ``stop``."""
        return self.take(np.arange(start, stop))

    def thinned(self, shares: Mapping[int, float], random: np.random.Generator) -> "Rows":
        """Return the rows without a random share of the ids of each feature in ``shares``."""
        features, rows = self.lengths.shape
        drop = np.zeros(features)
        drop[list(shares)] = list(shares.values())
        bags = np.repeat(np.arange(features * rows), self.lengths.ravel())
        keep = random.random(len(self.values)) >= drop[bags // rows]
        lengths = np.bincount(bags[keep], minlength=features * rows).reshape(features, rows)
        return Rows(self.dense, lengths, self.values[keep], self.labels)


def write_rows(path: Path, rows: Rows, **more: npt.NDArray[Any]) -> None:
    """Write ``rows`` as an .npz: the tensors of a request by name, ``labels``, and ``more``."""
    small = {LENGTHS: rows.lengths.astype(np.int32), VALUES: rows.values.astype(np.int32)}
    arrays = {**rows.inputs, **small, "labels": rows.labels, **more}
    np.savez_compressed(path, allow_pickle=False, **arrays)
