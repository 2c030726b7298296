"""Dense weights as whole numbers of three bytes each: less to read where reading is all the work.

A float has 24 bits of precision for each weight by itself, these 24 bits for all of an output's
weights together: where those are of one size, scores differ by no more than rounding does.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from backends.dlrm.forward.model import Bytes, Floats

_LARGEST = 2**23 - 1
# The kernel unpacks each number into the upper three bytes of four.
_UNPACKED = 256
# An output's largest weight is at most so many times their root mean square: the error of each is
# then below 3e-7 of it. Weights drawn from a normal distribution stay below 5.
_MOST_PEAK = 8
# Panels that the kernel reads together, for few rows.
_SIDE_BY_SIDE, _NUMBER_BYTES = 4, 3
# Sums are scaled when they are complete: an unpacked number is below 2**31, and a float holds less
# than 2**128. So no value may be larger than this by the number of inputs; forward.c has it too.
MOST_OF_ALL_INPUTS = 2.0**96
# The kernel reads less than so far past the last number.
_PADDING_BYTES = 64


@dataclass(frozen=True, slots=True, eq=False)
class Triples:
    """One layer: ``numbers`` (panels, inputs, columns), times ``scale`` (panels * columns,).

    Three bytes a number, little-endian, and some bytes after the last.
    """

    numbers: Bytes
    scale: Floats


def as_triples(panels: Floats) -> Triples | None:
    """Return ``panels`` (panels, inputs, columns) in three bytes a weight.

    None where the weights of an output differ too much in size.
    """
    step = steps_of_24_bits(panels)
    if step is None:
        return None
    codes = np.rint(panels / step[:, None]).astype("<i4", order="C")
    numbers = codes.view(np.uint8).reshape(*codes.shape, 4)[..., :3]
    padded = np.append(numbers.reshape(-1), np.zeros(_PADDING_BYTES, np.uint8))
    return Triples(padded, (step / _UNPACKED).astype(np.float32).reshape(-1))


def side_by_side(made: Triples, panels: tuple[int, int, int]) -> Bytes:
    """Return the numbers of ``made``, whose shape is ``panels``, four panels side by side each.

    So what belongs to one input lies in a few whole cache lines, and can be passed over. Panels
    that are left over at the end stay as they are.
    """
    count, inputs, columns = panels
    wide = count // _SIDE_BY_SIDE * _SIDE_BY_SIDE
    row_bytes = columns * _NUMBER_BYTES
    moved = made.numbers.copy()
    taken = made.numbers[: wide * inputs * row_bytes]
    grouped = taken.reshape(-1, _SIDE_BY_SIDE, inputs, row_bytes).transpose(0, 2, 1, 3)
    moved[: taken.size] = grouped.reshape(-1)
    return moved


def steps_of_24_bits(weights: Floats) -> npt.NDArray[np.float64] | None:
    """Return of what each output's weights are whole numbers of 24 bits, sign included.

    ``weights`` are (n, inputs, outputs), steps (n, outputs); None where the weights of an output
    differ too much in size.
    """
    wide = np.abs(weights.astype(np.float64))
    peak = wide.max(axis=1)
    if (peak > _MOST_PEAK * np.sqrt(np.square(wide).mean(axis=1))).any():
        return None
    steps: npt.NDArray[np.float64] = np.where(peak == 0, 1.0, peak) / _LARGEST
    return steps
