"""The shared C: ids -> rows by hashing, FP32 rows -> INT8 rows; proven against NumPy before use."""

import ctypes
import logging
from collections.abc import Sequence
from ctypes import c_int64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.compiled.build import NoKernelError, Sources, load_library
from backends.dlrm.stored_rows import stored_rows
from backends.ids.hashing import modulo_rows, murmur3_rows
from backends.ids.policy import Policy

_log = logging.getLogger(__name__)

ROWS = Sources("backends.compiled", "rows")
_FUNCTIONS = {"murmur3": 1, "modulo": 2}
_PROBE_IDS, _PROBE_ROWS, _PROBE_DIM = 1000, 200, 27
_SCALE_BIAS_BYTES = 4


class RowKernel:
    """The library's functions."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Take them. Raises NoKernelError if this CPU lacks what they need."""
        if not library.narsil_rows_run_here():
            raise NoKernelError("this CPU lacks AVX2 or F16C")
        # A few microseconds on the event loop: to give up Python's lock could cost more.
        self.hash_ids = ctypes.PyDLL(library._name).narsil_hash_ids  # noqa: SLF001  # its path
        self.hash_ids.argtypes = (c_void_p, c_void_p, c_int64, *[c_void_p] * 3)
        self.hash_ids.restype = None
        self._quantise = library.narsil_quantise_int8
        self._quantise.argtypes = (c_void_p, c_int64, c_int64, c_void_p, c_int64)
        self._quantise.restype = c_int64

    def quantise(self, values: npt.NDArray[np.float32], out: npt.NDArray[np.uint8]) -> bool:
        """Write ``values`` (n, dim) as INT8 rows into ``out``; without Python's lock.

        Returns whether all of them fit into FP16's range; what does not is not written.
        """
        block = np.ascontiguousarray(values)
        count, dim = block.shape
        if not dim or not count or out.shape[1] < dim + _SCALE_BIAS_BYTES:
            return False
        written = self._quantise(block.ctypes.data, count, dim, out.ctypes.data, out.strides[0])
        return bool(written == count)


class HashedIds:
    """Hash the ids of some features, as ``policies``, one a feature, say; in one call."""

    def __init__(self, kernel: RowKernel, policies: Sequence[Policy], rows: Sequence[int]) -> None:
        codes = [_FUNCTIONS[one.function] if one.name == "hash" else 0 for one in policies]
        self._kept = (
            np.array(codes, np.uint8), np.array([one.seed for one in policies], np.uint32),
            np.array(rows, np.int64),
        )  # fmt: skip
        self._call = kernel.hash_ids
        self._fixed = tuple(kept.ctypes.data for kept in self._kept)

    def __call__(
        self, values: npt.NDArray[Any], counts: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Return ``values``, those of tables that hash replaced by rows, in memory of their own.

        ``counts`` says how many ids each feature has.
        """
        rows = values.astype(np.int64)
        per_feature = np.ascontiguousarray(counts)
        self._call(rows.ctypes.data, per_feature.ctypes.data, len(counts), *self._fixed)
        return rows


def find_rows_kernel(folder: Path) -> RowKernel | None:
    """Return the functions, built into ``folder`` if need be; None, and a line, where there are
    none.
    """
    try:
        kernel = RowKernel(load_library(folder, ROWS))
    except NoKernelError as error:
        _log.info("ids and updates go by NumPy, there is no compiled library: %s", error)
        return None
    if doubt := _doubt(kernel):
        _log.warning("ids and updates go by NumPy, the compiled library is wrong: %s", doubt)
        return None
    return kernel


def hashed_ids(folder: Path, policies: Sequence[Policy], rows: Sequence[int]) -> HashedIds | None:
    """Return what hashes by ``policies``, one a table of as many ``rows``; None without C."""
    kernel = find_rows_kernel(folder)
    return None if kernel is None else HashedIds(kernel, policies, rows)


def _doubt(kernel: RowKernel) -> str:
    """Return where the functions differ from NumPy's on seeded probes, or ""."""
    random = np.random.default_rng(20261130)
    ids = random.integers(-(2**63), 2**63, _PROBE_IDS, np.int64, endpoint=False)
    for rows in (1, 2, 1009, 2**31 - 1, 2**32):
        for function, right in (("murmur3", murmur3_rows), ("modulo", modulo_rows)):
            policy = Policy("hash", function=function, seed=2**32 - 5)  # type: ignore[arg-type]
            hashed = HashedIds(kernel, [policy], [rows])(ids, np.array([_PROBE_IDS]))
            if not np.array_equal(hashed, right(ids, np.uint32(policy.seed), rows)):
                return f"{function} into {rows} rows"
    values = random.standard_normal((_PROBE_ROWS, _PROBE_DIM)).astype(np.float32)
    values[:3] *= np.array([[1e-9], [1e4], [0]], np.float32)
    wanted = stored_rows("int8", values, _PROBE_DIM + 5)
    found = np.zeros_like(wanted)
    sound = kernel.quantise(values, found) and np.array_equal(wanted, found)
    return "" if sound else "INT8 rows"
