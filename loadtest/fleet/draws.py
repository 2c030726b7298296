"""Random numbers one by one, from a seed, drawn in blocks: a call of numpy for each would tell."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

# Returns so many numbers.
Law: TypeAlias = Callable[[np.random.Generator, int], npt.NDArray[np.float64]]

_BLOCK = 4096


def constant(rng: np.random.Generator, count: int) -> npt.NDArray[np.float64]:
    """Return ones: every batch of a size takes as long."""
    del rng
    return np.ones(count)


def exponential(rng: np.random.Generator, count: int) -> npt.NDArray[np.float64]:
    """Return numbers of mean 1 without memory, as the M of M/M/1 has it."""
    return rng.exponential(1.0, count)


def uniform(rng: np.random.Generator, count: int) -> npt.NDArray[np.float64]:
    """Return numbers from 0 to 1."""
    return rng.random(count)


def among(values: Sequence[float]) -> Law:
    """Return a law that draws one of ``values``, as measured."""
    known = np.asarray(values, np.float64)
    return lambda rng, count: rng.choice(known, count)


class Draws:
    """Numbers of one law, for one seed always the same ones."""

    def __init__(self, law: Law, seed: Sequence[int]) -> None:
        self._law = law
        self._rng = np.random.default_rng(seed)
        self._left: list[float] = []

    def next(self) -> float:
        """Return the next number."""
        if not self._left:
            self._left = self._law(self._rng, _BLOCK).tolist()
            self._left.reverse()
        return self._left.pop()

    def below(self, limit: int) -> int:
        """Return a whole number below ``limit``; the law is uniform."""
        return int(self.next() * limit)
