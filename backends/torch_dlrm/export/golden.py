"""Golden batch: jagged inputs with the scores that a right model gives for them."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from backends.dlrm.gather import DENSE, IDS
from backends.dlrm.manifest import GOLDEN_FILE, GOLDEN_SCORES
from backends.torch_dlrm.export.presets import DlrmShape
from scheduler.types import Array, InferRequest

ROWS = 128
OUTPUT = "default"
LENGTHS, VALUES = f"{IDS}.lengths", f"{IDS}.values"
# Empty, one-hot and multi-hot bags, about one id a bag in the middle.
_BAG_LENGTHS = (0, 1, 1, 1, 2, 5)
_INPUTS = (DENSE, LENGTHS, VALUES)
# What reading a damaged file raises beside ValueError.
_DAMAGED = (EOFError, KeyError, TypeError, MemoryError, NotImplementedError, BadZipFile, zlib.error)


@dataclass(frozen=True, slots=True)
class Golden:
    """One request's inputs, its outputs by the FP32 model and by the artifact as it is stored."""

    inputs: Mapping[str, Array]
    fp32: Mapping[str, Array]
    served: Mapping[str, Array]

    @property
    def rows(self) -> int:
        """Rows of the batch."""
        return len(self.inputs[DENSE])

    def request(self) -> InferRequest:
        """Return the batch as one request to the only model."""
        return InferRequest("", self.rows, self.inputs)


def golden_inputs(shape: DlrmShape, rows: int, seed: int) -> dict[str, Array]:
    """Draw a request of ``rows`` rows; with enough rows every table's first and last id occur."""
    random = np.random.default_rng(seed)
    features = len(shape.features)
    lengths = random.choice(np.asarray(_BAG_LENGTHS, np.int64), (features, rows))
    counts = lengths.sum(axis=1)
    tables = [
        _ids(random, table_rows, count)
        for table_rows, count in zip(shape.table_rows, counts.tolist(), strict=True)
    ]
    dense = random.standard_normal((rows, len(shape.dense_names)), np.float32)
    return {DENSE: dense, LENGTHS: lengths, VALUES: np.concatenate(tables)}


def _ids(random: np.random.Generator, table_rows: int, count: int) -> Array:
    ids = random.integers(0, table_rows, count)
    if count >= 2:
        ids[random.choice(count, 2, replace=False)] = (0, table_rows - 1)
    return ids


def example_request(shape: DlrmShape, seed: int) -> dict[str, Any]:
    """Return three rows as the row-wise JSON body of a predict call."""
    inputs = golden_inputs(shape, 3, seed)
    bags = np.split(inputs[VALUES], np.cumsum(inputs[LENGTHS])[:-1])
    columns = [
        [bag.tolist() for bag in bags[start : start + 3]] for start in range(0, len(bags), 3)
    ]
    return {
        DENSE: np.round(inputs[DENSE].astype(np.float64), 3).tolist(),
        IDS: dict(zip(shape.features, columns, strict=True)),
    }


def write_golden(folder: Path, golden: Golden) -> None:
    """Write golden.npz: the inputs by name, the outputs as ``fp32.NAME`` and ``served.NAME``."""
    arrays = dict(golden.inputs)
    arrays |= {f"fp32.{name}": scores for name, scores in golden.fp32.items()}
    arrays |= {f"{GOLDEN_SCORES[0]}{name}": scores for name, scores in golden.served.items()}
    np.savez_compressed(folder / GOLDEN_FILE, allow_pickle=False, **arrays)


def read_golden(folder: Path) -> Golden:
    """Read golden.npz of an artifact folder. Raises OSError without one, ValueError if damaged."""
    try:
        with (
            (folder / GOLDEN_FILE).open("rb") as file,  # NumPy leaves one open that is damaged
            np.load(file, allow_pickle=False) as arrays,
        ):
            golden = Golden(
                inputs={name: arrays[name] for name in _INPUTS},
                fp32=_under(arrays, "fp32."),
                served=next(filter(None, (_under(arrays, each) for each in GOLDEN_SCORES)), {}),
            )
    except _DAMAGED as error:
        raise ValueError(str(error)) from error
    _check_scores(golden)
    return golden


def _check_scores(golden: Golden) -> None:
    """Refuse scores that are not one or more floats for each row. Raises ValueError."""
    if not golden.inputs[DENSE].ndim:
        raise ValueError(f"{DENSE} has no rows")
    if not golden.served or golden.served.keys() != golden.fp32.keys():
        served, fp32 = sorted(golden.served), sorted(golden.fp32)
        raise ValueError(f"it has served scores of {served}, and FP32 scores of {fp32}")
    for name, scores in golden.served.items():
        for array in (scores, golden.fp32[name]):
            if array.dtype.kind != "f" or array.shape != (golden.rows, *scores.shape[1:]):
                what = f"{array.dtype} of shape {list(array.shape)}"
                raise ValueError(f"scores of {name!r} are {what}, for {golden.rows} rows")


def _under(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    return {name.removeprefix(prefix): arrays[name] for name in arrays if name.startswith(prefix)}
