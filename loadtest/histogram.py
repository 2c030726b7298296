"""Latencies in buckets that are a thousandth wide, as HdrHistogram's: any two can be added."""

import base64
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

UNIT_S = 1e-7
MOST_S = 60.0
_HALF = 1024  # of the buckets up to one power of two: three digits


def _index(units: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the bucket of each value: itself below 2048, then 1024 buckets a power of two."""
    shift = np.maximum(np.frexp(units.astype(np.float64))[1].astype(np.int64) - 11, 0)
    buckets: npt.NDArray[np.int64] = shift * _HALF + (units >> shift)
    return buckets


BUCKETS = int(_index(np.array([round(MOST_S / UNIT_S)]))[0]) + 1


def _no_counts() -> npt.NDArray[np.int64]:
    return np.zeros(BUCKETS, np.int64)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of latencies up to 60 s; what is longer counts as 60 s. Ours to change: ``counts``."""

    counts: npt.NDArray[np.int64] = field(default_factory=_no_counts)

    @classmethod
    def of(cls, latencies_s: Sequence[float] | npt.NDArray[np.float64]) -> "Histogram":
        """Count ``latencies_s`` (seconds)."""
        units = np.rint(np.asarray(latencies_s, np.float64) / UNIT_S)
        limited = np.clip(units, 0, MOST_S / UNIT_S).astype(np.int64)
        return cls(np.bincount(_index(limited), minlength=BUCKETS).astype(np.int64))

    def __add__(self, other: "Histogram") -> "Histogram":
        return Histogram(self.counts + other.counts)

    @property
    def total(self) -> int:
        """Return how many latencies were counted."""
        return int(self.counts.sum())

    def percentile(self, percent: float) -> float:
        """Return what ``percent`` of the latencies do not exceed (seconds); nan of none."""
        if not self.total:
            return math.nan
        rank = max(1, math.ceil(round(percent / 100 * self.total, 6)))
        return _upper_s(int(np.searchsorted(np.cumsum(self.counts), rank)))

    def share_within(self, limit_s: float) -> float:
        """Return the share of latencies up to ``limit_s``, to the bucket; nan of none."""
        if not self.total:
            return math.nan
        units = np.array([round(min(limit_s, MOST_S) / UNIT_S)])
        return float(self.counts[: int(_index(units)[0]) + 1].sum() / self.total)

    def curve(self) -> tuple[list[float], list[float]]:
        """Return the distribution: latencies (seconds), and the share that each bounds."""
        used = np.flatnonzero(self.counts)
        shares = np.cumsum(self.counts[used]) / max(1, self.total)
        return [_upper_s(int(bucket)) for bucket in used], [float(share) for share in shares]

    def packed(self) -> str:
        """Return it as text for JSON: base64 of zlib of the counts, little-endian int64."""
        return base64.b64encode(zlib.compress(self.counts.astype("<i8").tobytes())).decode()

    @classmethod
    def unpacked(cls, text: str) -> "Histogram":
        """Read what ``packed`` wrote. Raises ValueError."""
        try:
            counts = np.frombuffer(zlib.decompress(base64.b64decode(text)), "<i8")
        except zlib.error as error:
            raise ValueError(f"not a packed histogram: {error}") from error
        if len(counts) != BUCKETS:
            raise ValueError(f"a histogram has {BUCKETS} buckets, got {len(counts)}")
        return cls(counts.astype(np.int64))


def _upper_s(bucket: int) -> float:
    shift = max(0, bucket // _HALF - 1)
    return ((((bucket - shift * _HALF) + 1) << shift) - 1) * UNIT_S
