"""64-bit ids -> rows, the way a training pipeline does it, whole arrays at a time."""

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Uint32s = npt.NDArray[np.uint32]
Integers = npt.NDArray[np.int32] | npt.NDArray[np.int64]

# MurmurHash3_x86_32, by Austin Appleby, in the public domain.
_C1, _C2 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)
_FIVE, _ADD = np.uint32(5), np.uint32(0xE6546B64)
_MIX1, _MIX2 = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
_KEY_BYTES = np.uint32(8)
# Beyond it a remainder would not be exact in float64.
_MOST_EXACT_ROWS = 2**40
_MOST_INT32 = 2**31 - 1


def murmur3_rows(ids: Int64s, seeds: Uint32s | np.uint32, rows: Int64s | int) -> Integers:
    """Return ``murmur3(ids, seeds)`` modulo ``rows``, which is never negative.

    ``seeds`` and ``rows`` have one entry an id, or are one number for all.
    """
    hashed = murmur3(ids, seeds)
    if isinstance(rows, int):
        if rows > _MOST_INT32:
            return _modulo_one(hashed.astype(np.int64), rows)
        return _modulo_one(hashed, rows)
    # Numbers of 32 bits divide quickly.
    rest: Int64s = hashed % rows
    return rest


def modulo_rows(ids: Int64s, seeds: Uint32s | np.uint32, rows: Int64s | int) -> Integers:
    """Return ``ids + seeds``, which wraps around 64 bits, modulo ``rows``: never negative."""
    numbers = ids + seeds.astype(np.int64)
    return _modulo_one(numbers, rows) if isinstance(rows, int) else modulo(numbers, rows)


def _modulo_one(numbers: Integers, rows: int) -> Integers:
    """Return ``numbers % rows`` in a fourth of the time: NumPy divides by one number by vectors."""
    whole: Integers = numbers // rows
    # It may wrap around, and the difference wraps back.
    whole *= numbers.dtype.type(rows)
    return np.subtract(numbers, whole, out=whole)


def modulo(numbers: Int64s, rows: Int64s) -> Int64s:
    """Return ``numbers % rows``, in half the time of ``%`` where numbers are large."""
    if int(rows.min(initial=2)) < 2 or int(rows.max(initial=2)) > _MOST_EXACT_ROWS:
        rest: Int64s = numbers % rows
        return rest
    # A quotient in float64 is off by up to 2**10 / rows: what it leaves is so small that the
    # second is exact. Only the first product may wrap around, and its difference wraps back.
    rest = numbers - np.floor(numbers / rows).astype(np.int64) * rows
    rest -= np.floor(rest / rows).astype(np.int64) * rows
    return rest


def murmur3(ids: Int64s, seeds: Uint32s | np.uint32) -> npt.NDArray[np.int32]:
    """Return MurmurHash3_x86_32 of each id's 8 little-endian bytes, as signed numbers."""
    halves = np.ascontiguousarray(ids, "<i8").view("<u4").astype(np.uint32, copy=False)
    # Two blocks of a key at once, each in a row of its own.
    blocks = halves.reshape(-1, 2).T.copy()
    blocks *= _C1
    blocks = _rotated(blocks, 15)
    blocks *= _C2
    state = blocks[0]
    state ^= seeds
    for block in (blocks[1], _KEY_BYTES):
        state = _rotated(state, 13)
        state *= _FIVE
        state += _ADD
        state ^= block
    state ^= state >> np.uint32(16)
    state *= _MIX1
    state ^= state >> np.uint32(13)
    state *= _MIX2
    state ^= state >> np.uint32(16)
    hashed: npt.NDArray[np.int32] = state.view(np.int32)
    return hashed


def _rotated(words: Uint32s, bits: int) -> Uint32s:
    high = words << np.uint32(bits)
    high |= words >> np.uint32(32 - bits)
    return high
