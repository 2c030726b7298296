"""Texts for ids on their way to the engine, which has the vocabularies.

A codec that asks a front end's vocabulary for ids gets tokens: numbers that nobody outside can
foresee. Before a request leaves, those among its values are found, and their texts go with it. So
the vocabularies are in memory once, and a model that was just replaced meets no other's ids.
"""

import asyncio
import secrets
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scheduler.engine import Engine
from scheduler.errors import Code, ServingError
from scheduler.types import Array, InferRequest

# A request leaves in the turn of the loop in which it was decoded, or in the next.
_KEPT_S = 1.0
_REPLACED = "the model was replaced by one without the vocabulary of {!r}; ask again"


class Texts(NamedTuple):
    """Those of one feature: what stands at ``positions`` of an input."""

    name: str
    feature: str
    positions: Sequence[int]
    texts: Sequence[str]


class Tokens:
    """Hand out tokens for texts, and find the texts again, for a second or two."""

    def __init__(self) -> None:
        self._first = self._next = -(2**62) - secrets.randbelow(2**61)
        # By ascending first token: the feature, and its texts.
        self._starts: list[int] = []
        self._blocks: list[tuple[str, Sequence[str]]] = []
        self._older = 0
        self._expiring = False

    def make(self, feature: str, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return a token for each of ``texts``."""
        start, self._next = self._next, self._next + len(texts)
        self._starts.append(start)
        self._blocks.append((feature, texts))
        if not self._expiring:
            self._expire_later()
        return np.arange(start, self._next)

    def found(self, inputs: Mapping[str, Array]) -> list[Texts]:
        """Return the texts whose tokens are among ``inputs``. Raises ServingError."""
        found: list[Texts] = []
        for name, array in inputs.items() if self._blocks else ():
            if array.ndim == 1 and array.dtype == np.int64:
                ids = array.view(np.int64)
                where = np.flatnonzero((ids >= self._first) & (ids < self._next))
                found += self._of(name, where.tolist(), ids[where].tolist())
        return found

    def _of(self, name: str, positions: list[int], tokens: list[int]) -> list[Texts]:
        by_feature: dict[str, tuple[list[int], list[str]]] = {}
        for position, token in zip(positions, tokens, strict=True):
            block = bisect_right(self._starts, token) - 1
            if block < 0:
                raise ServingError(Code.INTERNAL, f"{name}: a text was forgotten")
            feature, texts = self._blocks[block]
            places, those = by_feature.setdefault(feature, ([], []))
            places.append(position)
            those.append(texts[token - self._starts[block]])
        return [Texts(name, feature, *each) for feature, each in by_feature.items()]

    def _expire_later(self) -> None:
        self._expiring = True
        asyncio.get_running_loop().call_later(_KEPT_S, self._expire)

    def _expire(self) -> None:
        """Forget what was there the last time, too."""
        del self._starts[: self._older], self._blocks[: self._older]
        self._older = len(self._blocks)
        self._expiring = False
        if self._older:
            self._expire_later()


class FarVocabulary:
    """Stands for the vocabulary of ``feature``, which only the engine has."""

    def __init__(self, tokens: Tokens, feature: str) -> None:
        self._tokens = tokens
        self._feature = feature

    def ids_of(self, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return what stands for each of ``texts`` until the engine has looked it up."""
        return self._tokens.make(self._feature, texts)


def looked_up(engine: Engine, request: InferRequest, found: Sequence[Texts]) -> InferRequest:
    """Return ``request`` with ids for texts, by the vocabularies of the model that is asked.

    Raises ServingError.
    """
    if not found:
        return request
    vocabularies = engine.spec(request.model, request.version).vocabularies
    inputs = dict(request.inputs)
    for name, feature, positions, texts in found:
        vocabulary = vocabularies.get(feature)
        if vocabulary is None:
            raise ServingError(Code.UNAVAILABLE, _REPLACED.format(feature), retry_after_s=0.1)
        ids = inputs[name].copy()
        ids[list(positions)] = vocabulary.ids_of(texts)
        inputs[name] = ids
    return request.with_inputs(inputs)
