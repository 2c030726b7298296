"""Requests -> one key-major batch in reused host buffers."""

from typing import Any

import numpy as np
import numpy.typing as npt

from backends.jagged import Allocate, JaggedLayout, JaggedStaging
from scheduler.types import Array, Batch, InferRequest

DENSE = "float_features"
IDS = "id_list_features"
# Which pattern each row has, (rows,) int32. Each of the patterns, (patterns, 1 + features) uint8,
# says what a row has of the row before: all dense values, then the bag of each feature.
PATTERN_OF_ROW, PATTERNS = "pattern_of_row", "patterns"
# Which of the dense rows is that of each row, (rows,) int32, never less than the row before's.
DENSE_ROWS = "float_features.rows"
# Of fewer rows, computing once what they share saves less than it costs (decision 36).
FEWEST_SHARING_ROWS = 16
# A batch of fewer rows, and no more ids, is quicker copied once more than looked at (decision 49).
FEW_ROWS, FEW_IDS = FEWEST_SHARING_ROWS, 1024


class Staging:
    """The host buffers of one forward; used by one thread at a time."""

    def __init__(
        self, layout: JaggedLayout, dense_features: int, rows: int, allocate: Allocate
    ) -> None:
        self._layout = layout
        self._jagged = JaggedStaging(layout, rows, allocate)
        flat = allocate(rows * dense_features, np.dtype(np.float32))
        self._dense: npt.NDArray[Any] = flat.reshape(rows, dense_features)

    def gather(self, batch: Batch) -> dict[str, Array]:
        """Return the artifact's inputs, lengths flat; they view the buffers until the next call.

        ``batch`` has at most the buffers' rows.
        """
        lengths, values = self._jagged.coalesce(batch.requests)
        dense = self._dense[: batch.rows]
        np.concatenate([request.inputs[DENSE] for request in batch.requests], out=dense)
        return {
            DENSE: dense,
            self._layout.lengths: lengths.reshape(-1),
            self._layout.values: values,
        }

    def gather_patterns(self, batch: Batch) -> dict[str, Array]:
        """Return the same and, where requests say what their rows share, the patterns of rows.

        All stays spelled out: without a look at PATTERN_OF_ROW and PATTERNS, scores are the same.
        Of one small request they are its own arrays, of any width and anywhere in memory.
        """
        if len(batch.requests) == 1 and self._is_small(batch.requests[0]):
            return self._as_it_came(batch.requests[0])
        inputs = self.gather(batch)
        if not any(map(_shares, batch.requests)):
            return inputs
        pattern_of_row = np.zeros(batch.rows, np.int32)
        features, columns = len(self._layout.features), self._dense.shape[1]
        patterns = np.zeros((len(batch.requests) + 1, 1 + features), np.uint8)
        for number, (request, own) in enumerate(
            zip(batch.requests, batch.slices(), strict=True), 1
        ):
            if request.shared and _shares(request):
                pattern_of_row[own.start + 1 : own.stop] = number
                patterns[number, 0] = _shares_dense(request, columns)
                patterns[number, 1:][list(request.shared.get(self._layout.lengths, ()))] = 1
        return {**inputs, PATTERN_OF_ROW: pattern_of_row, PATTERNS: patterns}

    def gather_distinct(self, batch: Batch) -> dict[str, Array]:
        """Return the same as ``gather`` but, where rows share all dense values, those only once.

        Then DENSE has fewer rows than the batch, and DENSE_ROWS is there.
        """
        requests, columns = batch.requests, self._dense.shape[1]
        once = [_shares_dense(request, columns) for request in requests]
        if not any(once):
            return self.gather(batch)
        lengths, values = self._jagged.coalesce(requests)
        parts, times = [], []
        for request, shared in zip(requests, once, strict=True):
            parts.append(request.inputs[DENSE][: 1 if shared else None])
            times += [request.rows] if shared else [1] * request.rows
        dense = self._dense[: len(times)]
        np.concatenate(parts, out=dense)
        return {
            DENSE: dense,
            DENSE_ROWS: np.arange(len(times), dtype=np.int32).repeat(times),
            self._layout.lengths: lengths.reshape(-1),
            self._layout.values: values,
        }

    def _is_small(self, request: InferRequest) -> bool:
        return request.rows < FEW_ROWS and request.inputs[self._layout.values].size <= FEW_IDS

    def _as_it_came(self, request: InferRequest) -> dict[str, Array]:
        inputs, layout = request.inputs, self._layout
        return {
            DENSE: inputs[DENSE],
            layout.lengths: inputs[layout.lengths].reshape(-1),
            layout.values: inputs[layout.values],
        }


def _shares_dense(request: InferRequest, columns: int) -> bool:
    return _shares(request) and len((request.shared or {}).get(DENSE, ())) == columns


def _shares(request: InferRequest) -> bool:
    return request.shared is not None and request.rows >= FEWEST_SHARING_ROWS
