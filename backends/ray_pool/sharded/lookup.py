"""Pool bags of the pieces of one part, compiled by Numba; imported on load only."""

from typing import Any

import numpy as np
import numpy.typing as npt

from backends.native_dlrm.jit import kernel
from backends.native_dlrm.kernels import fetch_ahead, pool

Array = npt.NDArray[Any]


@kernel
def pool_rows(storage: Array, layout: Array, ids: Array, ends: Array, out: Array) -> None:
    """Write the sum of each bag into ``out`` (rows, pieces, dim); ``ends`` is (pieces, rows)."""
    rows = ends.shape[1]
    for row in range(rows):
        if row + 1 < rows:
            fetch_ahead(storage, layout, ids, ends, row + 1)
        pool(storage, layout, ids, ends, row, out[row])


def ends_of(lengths: Array) -> npt.NDArray[np.int64]:
    """Return where each bag's ids end, (pieces, rows)."""
    return np.cumsum(lengths, dtype=np.int64).reshape(lengths.shape)
