"""Layers on packed weights: the loops whose sums stay in registers, as LLVM's instructions.

Of the same in Python Numba makes loops that read and write every sum for each input. A tile is some
rows by COLUMNS outputs of one layer, whose sums are kept over all inputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from backends.native_dlrm.kernels import ask_ahead

_WIDE = bool(dict(llvm.get_host_cpu_features()).get("avx512f"))
# Floats of a vector register, and as many rows as leave registers for weights and an input.
LANES, TILE_ROWS = (16, 14) if _WIDE else (8, 6)
COLUMNS = 2 * LANES
# Of so few rows, reading the weights is the work, and fewer bytes of them pay for unpacking.
FEW_ROWS = 3 if _WIDE else 1
# Rows that are reached from one address: there are not registers for the addresses of all.
_ROWS_OF_ADDRESS = 3
_FLOAT_BYTES, _PACKED_BYTES = 4, 3
_INPUTS_AHEAD = 16
_BYTE, _INT64, _FLOAT = ir.IntType(8), ir.IntType(64), ir.FloatType()
_VECTOR = ir.VectorType(_FLOAT, LANES)
_ZERO = ir.Constant(_VECTOR, [0.0] * LANES)
_LEAST = ir.Constant(_VECTOR, [float("-inf")] * LANES)


@dataclass(frozen=True, slots=True)
class _Tile:
    """A function being made: what is known of it, and its arguments that a loop reads."""

    builder: Any
    rows: int
    packed: bool
    x: Any
    x_stride: Any
    panel: Any


def _strip(  # noqa: PLR0913, PLR0917  # Numba counts them: no bundles, no *arguments
    typing_context: object, rows: object, packed: object, x: object, x_stride: object,
    panel: object, inputs: object, scale: object, bias: object, relu: object, out: object,
    out_stride: object,
) -> tuple[Any, Any]:  # fmt: skip
    """Compute up to TILE_ROWS rows by COLUMNS outputs; every argument is an int64.

    How many rows, whether ``panel`` has three bytes a weight, x, the bytes between its rows, panel,
    inputs, scale, bias, whether ReLU follows, out, the bytes between its rows. Arrays are
    addresses; ``scale`` is read only for three bytes a weight.
    """

    def generate(context: object, builder: Any, signature: object, arguments: Any) -> Any:
        rows, packed, *rest = arguments
        done = builder.append_basic_block()
        choice = builder.switch(builder.add(builder.add(rows, rows), packed), done)
        for height in range(1, TILE_ROWS + 1):
            for form in (False, True)[: 1 + (height <= FEW_ROWS)]:
                block = builder.append_basic_block()
                choice.add_case(_INT64(2 * height + form), block)
                builder.position_at_end(block)
                builder.call(_function(builder.module, height, form), rest)
                builder.branch(done)
        builder.position_at_end(done)
        return ir.Constant(_BYTE.as_pointer(), None)

    return types.none(*[types.int64] * 11), generate


strip: Any = intrinsic(_strip)


def _function(module: Any, rows: int, packed: bool) -> Any:
    """Return what computes ``rows`` rows; it takes the arguments of ``strip`` from x on."""
    kind = ir.FunctionType(ir.VoidType(), [_INT64] * 9)
    function = ir.Function(module, kind, f"narsil_tile_{rows}_{packed:d}")
    function.linkage = "internal"
    function.attributes.add("noinline")
    builder = ir.IRBuilder(function.append_basic_block())
    x, x_stride, panel, inputs, scale, bias, relu, out, out_stride = function.args
    tile = _Tile(builder, rows, packed, x, x_stride, panel)
    # Few rows leave too few sums in flight for the latency of a multiply-add.
    ways, own = 4 if rows == 1 else 2 if rows <= 3 else 1, 2 * rows
    even = builder.and_(inputs, _INT64(-ways))
    sums = _over_inputs(tile, ways, (_INT64(0), even), [_ZERO] * (own * ways))
    if ways > 1:
        sums[:own] = _over_inputs(tile, 1, (even, inputs), sums[:own])
    least = builder.select(builder.icmp_unsigned("==", relu, _INT64(0)), _LEAST, _ZERO)
    for number in range(own):
        row, side = divmod(number, 2)
        total, *others = sums[number::own]
        for other in others:
            total = builder.fadd(total, other)
        biases = builder.load(_vector(builder, bias, side), align=_FLOAT_BYTES)
        if packed:
            steps = builder.load(_vector(builder, scale, side), align=_FLOAT_BYTES)
            total = _multiply_add(builder, total, steps, biases)
        else:
            total = builder.fadd(total, biases)
        # In this order NaN stays NaN.
        negative = builder.fcmp_ordered("<", total, least)
        place = builder.add(out, builder.mul(out_stride, _INT64(row)))
        total = builder.select(negative, least, total)
        builder.store(total, _vector(builder, place, side), align=_FLOAT_BYTES)
    builder.ret_void()
    return function


def _over_inputs(tile: _Tile, ways: int, bounds: tuple[Any, Any], sums: Sequence[Any]) -> list[Any]:
    """Emit a loop over inputs, ``ways`` a turn; return ``sums``, (ways, rows, 2), after it."""
    builder, (first, end), start = tile.builder, bounds, tile.builder.block
    turn, leave = builder.append_basic_block(), builder.append_basic_block()
    step = COLUMNS * (_PACKED_BYTES if tile.packed else _FLOAT_BYTES)
    panel = builder.add(tile.panel, builder.mul(first, _INT64(step)))
    begin = builder.add(tile.x, builder.mul(first, _INT64(_FLOAT_BYTES)))
    rows = [
        builder.add(begin, builder.mul(tile.x_stride, _INT64(row)))
        for row in range(0, tile.rows, _ROWS_OF_ADDRESS)
    ]
    before = [first, panel, *rows, *sums]
    builder.cbranch(builder.icmp_unsigned("<", first, end), turn, leave)
    builder.position_at_end(turn)
    state = [_phi(builder, [(value, start)]) for value in before]
    after = _one_turn(tile, ways, step, state)
    for phi, value in zip(state, after, strict=True):
        phi.add_incoming(value, turn)
    builder.cbranch(builder.icmp_unsigned("<", after[0], end), turn, leave)
    builder.position_at_end(leave)
    found = [
        _phi(builder, [(old, start), (new, turn)]) for old, new in zip(before, after, strict=True)
    ]
    return found[-len(sums) :]


def _one_turn(tile: _Tile, ways: int, step: int, state: Sequence[Any]) -> list[Any]:
    """Emit one turn of a loop over inputs; return what ``state`` is after it."""
    builder, count = tile.builder, -(-tile.rows // _ROWS_OF_ADDRESS)
    number, panel, rows, sums = (
        state[0],
        state[1],
        list(state[2 : 2 + count]),
        list(state[2 + count :]),
    )
    # Code of no instruction: it keeps LLVM from making an address of its own for each row.
    same = ir.FunctionType(_INT64, [_INT64])
    rows = [builder.asm(same, "", "=r,0", [row], False) for row in rows]
    if tile.rows > _ROWS_OF_ADDRESS:
        # A panel of many inputs does not stay in the first-level cache from strip to strip.
        for side in range(2):
            ahead = _INPUTS_AHEAD * step + side * LANES * _FLOAT_BYTES
            ask_ahead(builder, builder.add(panel, _INT64(ahead)))
    for way in range(ways):
        weights = [_weights(tile, panel, 2 * way + side) for side in range(2)]
        for row in range(tile.rows):
            base, beyond = divmod(row, _ROWS_OF_ADDRESS)
            place = builder.add(rows[base], builder.mul(tile.x_stride, _INT64(beyond)))
            pointer = builder.inttoptr(place, _FLOAT.as_pointer())
            value = _spread(builder, builder.load(builder.gep(pointer, [_INT64(way)])))
            for side in range(2):
                own = 2 * (way * tile.rows + row) + side
                sums[own] = _multiply_add(builder, value, weights[side], sums[own])
    return [
        builder.add(number, _INT64(ways)),
        builder.add(panel, _INT64(ways * step)),
        *(builder.add(row, _INT64(ways * _FLOAT_BYTES)) for row in rows),
        *sums,
    ]


def _weights(tile: _Tile, panel: Any, number: int) -> Any:
    """Return the weights of vector ``number`` of a panel; packed ones as whole numbers."""
    builder = tile.builder
    if not tile.packed:
        return builder.load(_vector(builder, panel, number), align=_FLOAT_BYTES)
    place = builder.add(panel, _INT64(number * LANES * _PACKED_BYTES))
    # A quarter more is read than is used: there are as many bytes after the last weight.
    bytes_type = ir.VectorType(_BYTE, LANES * 4)
    loaded = builder.load(builder.inttoptr(place, bytes_type.as_pointer()), align=1)
    zeros = ir.Constant(bytes_type, [0] * (LANES * 4))
    # Each number to the upper three bytes of four; the lowest one is a zero.
    order = [
        LANES * 4 if byte % 4 == 0 else byte // 4 * 3 + byte % 4 - 1 for byte in range(LANES * 4)
    ]
    mask = ir.Constant(ir.VectorType(ir.IntType(32), len(order)), order)
    numbers = builder.bitcast(
        builder.shuffle_vector(loaded, zeros, mask), ir.VectorType(ir.IntType(32), LANES)
    )
    return builder.sitofp(numbers, _VECTOR)


def _vector(builder: Any, address: Any, number: int) -> Any:
    """Return a pointer to the vector ``number`` of those at ``address``."""
    place = builder.add(address, _INT64(number * LANES * _FLOAT_BYTES))
    return builder.inttoptr(place, _VECTOR.as_pointer())


def _spread(builder: Any, value: Any) -> Any:
    one = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), value, ir.IntType(32)(0))
    mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(one, ir.Constant(_VECTOR, ir.Undefined), mask)


def _multiply_add(builder: Any, left: Any, right: Any, total: Any) -> Any:
    # One instruction where the CPU has it, and two where not.
    name = f"llvm.fmuladd.v{LANES}f32"
    module = builder.module
    function = module.globals.get(name) or ir.Function(
        module, ir.FunctionType(_VECTOR, [_VECTOR] * 3), name
    )
    return builder.call(function, [left, right, total])


def _phi(builder: Any, values: Sequence[tuple[Any, Any]]) -> Any:
    phi = builder.phi(values[0][0].type)
    for value, block in values:
        phi.add_incoming(value, block)
    return phi
