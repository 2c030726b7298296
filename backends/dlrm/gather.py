"""Requests -> one key-major batch in reused host buffers."""

from typing import Any

import numpy as np
import numpy.typing as npt

from backends.jagged import Allocate, JaggedLayout, JaggedStaging
from scheduler.types import Array, Batch

DENSE = "float_features"
IDS = "id_list_features"


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
