"""FP32 rows as a table stores them: bit for bit what FBGEMM, and so the exporter, makes of them.

A quantised row starts with its scale and its bias, both FP16; then value = scale * number + bias.
Numbers of fewer than 8 bits share bytes, the first in the lowest bits.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

BITS = {"int8": 8, "int4": 4, "int2": 2}
SCALE_BIAS_BYTES = 4
# Between steps others have their turn: 0.03 ms of C, 0.2 of NumPy.
_STEP_ROWS = 512


class Quantises(Protocol):
    """A faster way to make INT8 rows of FP32 ones."""

    def quantise(self, values: Floats, out: Bytes) -> bool:
        """Write ``values`` into ``out``; False if it cannot, and then ``out`` is anything."""


class UnstorableError(ValueError):
    """Say which of the rows, by its place, cannot be stored, and why."""

    def __init__(self, place: int, why: str) -> None:
        super().__init__(why)
        self.place = place


def stored_rows(
    kind: str,
    values: Floats,
    row_bytes: int,
    faster: Quantises | None = None,
    rest: Callable[[], None] = lambda: None,
) -> Bytes:
    """Return ``values`` (n, dim) as rows of ``kind``, each padded with zeros to ``row_bytes``.

    In steps: after each of them ``rest`` is called.

    Raises UnstorableError for a row that does not fit into FP16, where it needs to.
    """
    stored = np.zeros((len(values), row_bytes), np.uint8)
    for start in range(0, len(values), _STEP_ROWS):
        block, out = values[start : start + _STEP_ROWS], stored[start : start + _STEP_ROWS]
        if kind == "fp32":
            _put(out, 0, block)
        elif kind == "fp16":
            _put(out, 0, _halves(block, start))
        elif kind != "int8" or faster is None or not faster.quantise(block, out):
            _quantise(block, BITS[kind], out, start)
        rest()
    return stored


def _put(out: Bytes, first: int, items: npt.NDArray[np.generic]) -> None:
    data = np.ascontiguousarray(items).view(np.uint8).reshape(len(items), -1)
    out[:, first : first + data.shape[1]] = data


def _halves(values: Floats, start: int) -> npt.NDArray[np.float16]:
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
    finite = np.isfinite(halves.reshape(len(halves), -1)).all(axis=1)
    if not finite.all():
        at = int(np.argmin(finite))
        raise UnstorableError(start + at, "has values beyond FP16's +-65504")
    return halves


def _quantise(values: Floats, bits: int, out: Bytes, start: int) -> None:
    most = np.float32(2**bits - 1)
    # Laid out by column, the smallest and largest of each row are found three times as fast.
    columns = np.ascontiguousarray(values.T)
    bias = _halves(columns.min(axis=0) + np.float32(0), start)  # which of two zeros is no matter
    low = bias.astype(np.float32)
    spread = columns.max(axis=0) - low
    halves = _halves(np.where(spread == 0, np.float32(1), spread / most), start)
    scale = halves.astype(np.float32)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / scale
    # A spread too small for FP16: any scale will do, as every number becomes 0.
    lost = np.isinf(inverse)
    halves[lost] = inverse[lost] = 1
    numbers = values - low[:, None]
    numbers *= inverse[:, None]
    np.rint(numbers, out=numbers)
    quantised = np.clip(numbers, 0, most, out=numbers).astype(np.uint8)
    _put(out, 0, halves)
    _put(out, 2, bias)
    _put(out, SCALE_BIAS_BYTES, _packed(quantised, bits))


def _packed(numbers: Bytes, bits: int) -> Bytes:
    share = 8 // bits
    if share == 1:
        return numbers
    packed = np.zeros((len(numbers), -(-numbers.shape[1] // share)), np.uint8)
    for place in range(share):
        taken = numbers[:, place::share]
        packed[:, : taken.shape[1]] |= taken << np.uint8(place * bits)
    return packed
