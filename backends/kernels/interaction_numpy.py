"""The interaction in NumPy: the member that runs everywhere."""

import numpy as np
import numpy.typing as npt

from backends.kernels.sizes import sizes_of

Floats = npt.NDArray[np.float32]


def why_off() -> str:
    """Return "": this one always runs."""
    return ""


def interact(dense: Floats, pooled: Floats) -> Floats:
    """Return (rows, dim + pairs). Raises ValueError for shapes that do not fit."""
    sizes = sizes_of(dense.shape, pooled.shape)
    vectors = np.concatenate([dense[:, None, :], pooled], axis=1)
    products = vectors @ vectors.transpose(0, 2, 1)
    out = np.empty((sizes.rows, sizes.width), np.float32)
    out[:, : sizes.dim] = dense
    first, second = np.triu_indices(sizes.features + 1, 1)
    out[:, sizes.dim :] = products[:, first, second]
    return out
