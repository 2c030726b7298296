"""The sizes of one interaction, checked before a kernel reads memory by them."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many rows, id features and numbers a vector."""

    rows: int
    features: int
    dim: int

    @property
    def width(self) -> int:
        """Numbers a row of the result: the dense vector and one a pair of vectors."""
        return self.dim + (self.features + 1) * self.features // 2


def sizes_of(dense: Sequence[int], pooled: Sequence[int]) -> Sizes:
    """Return the sizes that the shapes (rows, dim) and (rows, features, dim) agree on.

    Raises ValueError.
    """
    if len(dense) != 2 or len(pooled) != 3 or (pooled[0], pooled[2]) != tuple(dense):
        raise ValueError(
            f"dense is {tuple(dense)} and pooled {tuple(pooled)}; "
            "expected (rows, dim) and (rows, features, dim)"
        )
    return Sizes(*pooled)


def power_of_two(number: int, least: int = 16) -> int:
    """Return the smallest power of two that holds ``number`` and is at least ``least``.

    Tiles have such sizes; matrix units take none below 16.
    """
    return max(least, 1 << max(number - 1, 0).bit_length())
