"""The shared C: ids -> rows by policy, FP32 rows -> INT8 rows; proven against NumPy before use."""

import ctypes
import logging
from collections.abc import Sequence
from ctypes import c_int64, c_void_p
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from backends.compiled.build import NoKernelError, Sources, load_library
from backends.dlrm.stored_rows import stored_rows
from backends.ids.policy import Policy, parse_policy
from backends.ids.rules import IdRules, Settled
from backends.jagged import JaggedLayout
from scheduler.types import InferRequest

_log = logging.getLogger(__name__)

ROWS = Sources("backends.compiled", "rows")
_CODES = {"reject": 0, "murmur3": 1, "modulo": 2, "zero": 3, "default_row": 4, "clamp": 5}
_TABLE = np.dtype([("rows", "<i8"), ("row", "<i8"), ("seed", "<u4"), ("policy", "<u4")])
_PROBE_IDS, _PROBE_ROWS, _PROBE_DIM = 1000, 200, 27
_PROBE_POLICIES = (
    "hash:murmur3:4294967291",
    "hash:modulo:4294967291",
    "zero",
    "default_row:0",
    "clamp",
)
_SCALE_BIAS_BYTES = 4

Ids: TypeAlias = npt.NDArray[np.int64]


class RowKernel:
    """The library's functions."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Take them. Raises NoKernelError if this CPU lacks what they need."""
        if not library.narsil_rows_run_here():
            raise NoKernelError("this CPU lacks AVX2 or F16C")
        # A few microseconds on the event loop: to give up Python's lock could cost more.
        self.settle_ids = ctypes.PyDLL(library._name).narsil_settle_ids  # noqa: SLF001  # its path
        self.settle_ids.argtypes = (
            c_void_p, c_int64, c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_void_p,
        )  # fmt: skip
        self.settle_ids.restype = c_int64
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


class SettledIds:
    """Make rows of ids by ``policies``, one a feature, of tables of so many ``rows``; in C."""

    def __init__(self, kernel: RowKernel, policies: Sequence[Policy], rows: Sequence[int]) -> None:
        tables = [
            (
                limit,
                each.row,
                each.seed,
                _CODES[each.function if each.name == "hash" else each.name],
            )
            for each, limit in zip(policies, rows, strict=True)
        ]
        self._tables = np.array(tables, _TABLE)
        self._tables_at = self._tables.ctypes.data
        self._call = kernel.settle_ids

    def __call__(self, lengths: npt.NDArray[Any], values: npt.NDArray[Any]) -> Settled | None:
        """Return what becomes of ``values``; None if a table refuses one, or they do not fit."""
        features, columns = lengths.shape
        ids, bags = values.size, lengths.size
        # One piece of memory: to ask for the address of an array costs a microsecond.
        room = np.empty(ids + bags + 2 * features, np.int64)
        room[:ids] = values
        room[ids : ids + bags] = lengths.ravel()
        room[ids + bags :] = 0
        at = room.ctypes.data
        bags_at = at + 8 * ids
        counts_at = bags_at + 8 * bags
        outside_at = counts_at + 8 * features
        left = self._call(
            at, ids, bags_at, columns, features, self._tables_at, counts_at, outside_at
        )
        if left < 0:
            return None
        if left < ids:
            lengths = room[ids : ids + bags].reshape(features, columns)
        return Settled(lengths, room[:left], room[-2 * features : -features], room[-features:])


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


def settled_ids(folder: Path, policies: Sequence[Policy], rows: Sequence[int]) -> SettledIds | None:
    """Return what goes by ``policies``, one a table of as many ``rows``; None without C."""
    kernel = find_rows_kernel(folder)
    return None if kernel is None else SettledIds(kernel, policies, rows)


def _doubt(kernel: RowKernel) -> str:
    """Return where the functions differ from NumPy's on seeded probes, or ""."""
    random = np.random.default_rng(20261130)
    ids = random.integers(-(2**63), 2**63, _PROBE_IDS, np.int64, endpoint=False)
    for rows in (1, 2, 1009, 2**31 - 1, 2**32):
        near = np.where(ids % 2 == 0, ids, ids % (2 * rows))
        for text in _PROBE_POLICIES:
            if _differs(kernel, parse_policy(text, rows), rows, near):
                return f"{text} into {rows} rows"
    values = random.standard_normal((_PROBE_ROWS, _PROBE_DIM)).astype(np.float32)
    values[:3] *= np.array([[1e-9], [1e4], [0]], np.float32)
    wanted = stored_rows("int8", values, _PROBE_DIM + 5)
    found = np.zeros_like(wanted)
    sound = kernel.quantise(values, found) and np.array_equal(wanted, found)
    return "" if sound else "INT8 rows"


def _differs(kernel: RowKernel, policy: Policy, rows: int, ids: Ids) -> bool:
    """Return whether ``ids`` of two tables in bags of four become others than by NumPy."""
    policies, limits = [policy, policy], np.array([rows, rows], np.int64)
    layout = JaggedLayout("ids", ("a", "b"), limits)
    inputs = {"ids.lengths": np.full((2, len(ids) // 8), 4, np.int64), "ids.values": ids}
    request = InferRequest("", len(ids) // 8, inputs)
    settled = SettledIds(kernel, policies, limits.tolist())
    right = IdRules(layout, policies).check(request)
    found = IdRules(layout, policies, settles=settled).check(request)
    if right is None or found is None:
        return right is not found
    return right.missed != found.missed or any(
        not np.array_equal(right.request.inputs[name], found.request.inputs[name])
        for name in inputs
    )
