"""The kernels, as Python that Numba compiles; imported on load only. Each runs on one thread.

A feature's table is one row of ``layout``: see ``layout.table_layout``.
"""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from backends.dlrm.forward.layout import FP16, INT4, INT8, KIND, MEAN, PLACE, START, STRIDE
from backends.native_dlrm.jit import kernel

LINE_BYTES = 64
Array: TypeAlias = npt.NDArray[Any]
# A Python int where it is called, a machine integer where it is compiled.
Index: TypeAlias = Any


def _half_to_float(typing_context: object, bits: object) -> tuple[Any, Any]:
    """Return the float32 that the 16 bits of an IEEE half mean: one instruction."""

    def generate(context: object, builder: Any, signature: object, arguments: Any) -> Any:
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


def _prefetch(typing_context: object, address: object) -> tuple[Any, Any]:
    """Ask for the cache line at ``address`` (an int); a wrong address does no harm."""

    def generate(context: object, builder: Any, signature: object, arguments: Any) -> Any:
        ask_ahead(builder, arguments[0])
        return ir.Constant(ir.IntType(8).as_pointer(), None)

    return types.none(types.int64), generate


def ask_ahead(builder: Any, address: Any) -> None:
    """Emit the instruction that asks for the cache line at ``address``, an int."""
    pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    wanted = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
    insert: Any = cgutils.get_or_insert_function
    function = insert(builder.module, wanted, "llvm.prefetch.p0")
    reading, keep, data = number(0), number(3), number(1)
    place = builder.inttoptr(address, pointer)
    builder.call(function, [place, reading, keep, data])


def _single_to_float(typing_context: object, bits: object) -> tuple[Any, Any]:
    """Return the float32 that 32 bits mean."""

    def generate(context: object, builder: Any, signature: object, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


half_to_float: Any = intrinsic(_half_to_float)
single_to_float: Any = intrinsic(_single_to_float)
prefetch: Any = intrinsic(_prefetch)


@kernel
def two_bytes(storage: Array, start: Index) -> Any:
    """Return the two bytes at ``start``, uint64, as a little-endian number."""
    high = np.uint16(storage[start + np.uint64(1)]) << np.uint16(8)
    return np.uint16(storage[start]) | np.uint16(high)


@kernel
def add_row(storage: Array, start: Index, kind: Index, vectors: Array, place: Index) -> None:
    """Add the stored row at byte ``start`` to ``vectors[place]``; both are uint64.

    Unsigned: a signed index may count from the end, and that test keeps a loop from vectorising.
    No slices: each would count references by atomic operations, on one counter for all lanes.
    """
    columns = range(np.uint64(vectors.shape[1]))
    one, two = np.uint64(1), np.uint64(2)
    if kind == INT8:
        scale = half_to_float(two_bytes(storage, start))
        bias = half_to_float(two_bytes(storage, start + two))
        start += two + two
        for column in columns:
            vectors[place, column] += scale * np.float32(storage[start + column]) + bias
    elif kind == INT4:
        scale = half_to_float(two_bytes(storage, start))
        bias = half_to_float(two_bytes(storage, start + two))
        start += two + two
        for column in columns:
            both = np.uint32(storage[start + (column >> one)])
            code = (both >> np.uint32((column & one) << two)) & np.uint32(15)
            vectors[place, column] += scale * np.float32(code) + bias
    elif kind == FP16:
        for column in columns:
            vectors[place, column] += half_to_float(two_bytes(storage, start + (column << one)))
    else:
        for column in columns:
            low = two_bytes(storage, start + (column << two))
            high = two_bytes(storage, start + (column << two) + two)
            bits = np.uint32(low) | np.uint32(np.uint32(high) << np.uint32(16))
            vectors[place, column] += single_to_float(bits)


@kernel
def bag_start(ends: Array, feature: Index, row: Index) -> Index:
    """Return where the ids of a bag start: where those of the bag before end."""
    if row:
        return int(ends[feature, row - 1])
    return int(ends[feature - 1, ends.shape[1] - 1]) if feature else 0


@kernel
def pool(
    storage: Array, layout: Array, ids: Array, ends: Array, row: Index, vectors: Array
) -> None:
    """Look up and pool every bag of batch row ``row`` into ``vectors``, (features + 1, dim).

    ``ends`` is (features, rows): where each bag's ids end among ``ids``.
    """
    dim = vectors.shape[1]
    for feature in range(ends.shape[0]):
        first, last = bag_start(ends, feature, row), ends[feature, row]
        place = layout[feature, PLACE]
        for column in range(dim):
            vectors[place, column] = 0
        for position in range(first, last):
            start = layout[feature, START] + np.int64(ids[position]) * layout[feature, STRIDE]
            add_row(storage, np.uint64(start), layout[feature, KIND], vectors, np.uint64(place))
        if layout[feature, MEAN] and last > first + 1:
            for column in range(dim):
                vectors[place, column] /= np.float32(last - first)


@kernel
def fetch_ahead(storage: Array, layout: Array, ids: Array, ends: Array, row: Index) -> None:
    """Ask for the stored rows of the first id of each bag of batch row ``row``.

    A row is anywhere in gigabytes: without this each lookup waits for memory (by far most bags
    have one id).
    """
    for feature in range(ends.shape[0]):
        first = bag_start(ends, feature, row)
        if first < ends[feature, row]:
            stride = layout[feature, STRIDE]
            start = layout[feature, START] + np.int64(ids[first]) * stride
            for line in range(0, stride + LINE_BYTES - 1, LINE_BYTES):
                prefetch(storage.ctypes.data + start + min(line, stride - 1))


@kernel
def pairs(vectors: Array, out: Array, row: Index) -> None:
    """Write the dot product of each pair of ``vectors`` into the end of row ``row`` of ``out``.

    In the order (0, 1), (0, 2), ... (1, 2), ...
    """
    count, dim = vectors.shape
    position = dim
    for left in range(count):
        right = left + 1
        # Four at a time: one load of the left vector serves four products.
        while right + 4 <= count:
            sum0 = sum1 = sum2 = sum3 = np.float32(0)
            for column in range(dim):
                value = vectors[left, column]
                sum0 += value * vectors[right, column]
                sum1 += value * vectors[right + 1, column]
                sum2 += value * vectors[right + 2, column]
                sum3 += value * vectors[right + 3, column]
            out[row, position] = sum0
            out[row, position + 1] = sum1
            out[row, position + 2] = sum2
            out[row, position + 3] = sum3
            position += 4
            right += 4
        while right < count:
            total = np.float32(0)
            for column in range(dim):
                total += vectors[left, column] * vectors[right, column]
            out[row, position] = total
            position += 1
            right += 1
