"""64-bit ids -> rows, the way a training pipeline does it, whole arrays at a time."""

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Uint32s = npt.NDArray[np.uint32]

# MurmurHash3_x86_32, by Austin Appleby, in the public domain.
_C1, _C2 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)
_FIVE, _ADD = np.uint32(5), np.uint32(0xE6546B64)
_MIX1, _MIX2 = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
_KEY_BYTES = np.uint32(8)
# Beyond it a remainder would not be exact in float64.
_MOST_EXACT_ROWS = 2**40


def murmur3_rows(ids: Int64s, seeds: Uint32s, rows: Int64s) -> Int64s:
    """Return ``murmur3(ids, seeds)`` modulo ``rows``, which is never negative.

    ``seeds`` and ``rows`` have one entry an id, or one for all.
    """
    # Numbers of 32 bits divide quickly.
    hashed: Int64s = murmur3(ids, seeds) % rows
    return hashed


def modulo_rows(ids: Int64s, seeds: Uint32s, rows: Int64s) -> Int64s:
    """Return ``ids + seeds``, which wraps around 64 bits, modulo ``rows``: never negative."""
    return modulo(ids + seeds.astype(np.int64), rows)


def modulo(numbers: Int64s, rows: Int64s) -> Int64s:
    """Return ``numbers % rows``, in half the time of ``%`` where numbers are large."""
    if int(rows.min(initial=2)) < 2 or int(rows.max(initial=2)) > _MOST_EXACT_ROWS:
        whole: Int64s = numbers % rows
        return whole
    # A quotient in float64 is off by up to 2**10 / rows: what it leaves is so small that the
    # second is exact. Only the first product may wrap around, and its difference wraps back.
    rest = numbers - np.floor(numbers / rows).astype(np.int64) * rows
    rest -= np.floor(rest / rows).astype(np.int64) * rows
    return rest


def murmur3(ids: Int64s, seeds: Uint32s) -> npt.NDArray[np.int32]:
    """Return MurmurHash3_x86_32 of each id's 8 little-endian bytes, as signed numbers."""
    halves = np.ascontiguousarray(ids, "<i8").view("<u4").astype(np.uint32, copy=False)
    # Two blocks of a key at once, each in a row of its own.
    blocks = np.ascontiguousarray(halves.reshape(-1, 2).T)
    blocks *= _C1
    blocks = _rotated(blocks, 15)
    blocks *= _C2
    state = seeds ^ blocks[0]
    state = _rotated(state, 13)
    state *= _FIVE
    state += _ADD
    state ^= blocks[1]
    state = _rotated(state, 13)
    state *= _FIVE
    state += _ADD
    state ^= _KEY_BYTES
    state ^= state >> np.uint32(16)
    state *= _MIX1
    state ^= state >> np.uint32(13)
    state *= _MIX2
    state ^= state >> np.uint32(16)
    return state.view(np.int32)


def _rotated(words: Uint32s, bits: int) -> Uint32s:
    high = words << np.uint32(bits)
    high |= words >> np.uint32(32 - bits)
    return high
