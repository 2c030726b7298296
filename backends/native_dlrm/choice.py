"""Choose what computes the forward: the C kernel where it is proven right, else Numba's."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from backends.compiled.build import NoKernelError
from backends.dlrm.forward.compiled import CompiledForward, CompiledWeights, Kernel
from backends.dlrm.forward.compiler import load_library
from backends.dlrm.forward.model import Dlrm, Floats
from backends.dlrm.gather import DENSE, IDS, Staging
from backends.native_dlrm.options import COMPILED, FP16, FP32, NUMBA, NativeDlrmOptions
from backends.native_dlrm.reference import Reference
from scheduler.errors import LoadError
from scheduler.types import Array, Batch

_log = logging.getLogger(__name__)

# With large inputs, sums are long in digits.
_TOLERANCE, _LARGE_TOLERANCE = 2e-6, 1e-3
_LARGE = 100.0
# Below, at and above the heights of a tile and of a block; odd ones.
_ROWS = (0, 1, 2, 3, 13, 29, 113, 250)
_BAGS = (0, 1, 1, 1, 2, 7)


class Lane(Protocol):
    """One lane's forward."""

    def run(self, inputs: Mapping[str, Array]) -> Floats:
        """Return the scores of a gathered batch, (rows,), in memory of their own."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What computes a model: ``make_lane`` makes a lane, ``gather`` what it reads of a batch.

    ``properties`` say what it is.
    """

    make_lane: Callable[[], Lane]
    gather: Callable[[Staging, Batch], Mapping[str, Array]]
    properties: Mapping[str, str]


def choose(dlrm: Dlrm, options: NativeDlrmOptions) -> Choice:
    """Return what ``options`` want and the facts allow. Raises LoadError."""
    reason = "" if options.kernel != NUMBA else f"--kernel {NUMBA}"
    folder = Path(options.cache_dir)
    if not reason:
        try:
            return _compiled(dlrm, folder, half=options.dense == FP16)
        except NoKernelError as error:
            reason = str(error)
    if options.kernel == COMPILED:
        raise LoadError(f"--kernel {COMPILED}: {reason}")
    if options.dense != FP32:
        raise LoadError(f"--dense {options.dense} needs the compiled kernel: {reason}")
    return _numba(dlrm, folder, "" if options.kernel == NUMBA else reason)


def _compiled(dlrm: Dlrm, folder: Path, *, half: bool) -> Choice:
    """Return the C kernel, proven to score as float64 does. Raises NoKernelError."""
    kernel = Kernel(load_library(folder))
    weights = CompiledWeights(dlrm, kernel, half=half)
    why = doubt(CompiledForward(weights), Reference(dlrm, half=half), dlrm)
    if why:
        raise NoKernelError(f"it does not score as NumPy does: {why}")
    properties = {"plan": COMPILED, "instructions": kernel.instructions}
    properties |= {"dense": FP16 if half else FP32}
    return Choice(lambda: CompiledForward(weights), Staging.gather_patterns, properties)


def _numba(dlrm: Dlrm, folder: Path, reason: str) -> Choice:
    """Return Numba's kernel, proven to score as float64 does. Raises LoadError."""
    # Half a second and 100 MB that the compiled kernel does without.
    from backends.native_dlrm.jit import keep_compiled_in  # noqa: PLC0415

    keep_compiled_in(folder)
    from backends.native_dlrm.forward import Forward, Weights  # noqa: PLC0415

    if reason:
        _log.warning("no compiled kernel, Numba computes: %s", reason)
    weights = Weights(dlrm)
    why = doubt(Forward(weights), Reference(dlrm), dlrm)
    if why:
        raise LoadError(f"Numba's kernel does not score as NumPy does: {why}")
    told = {"plan_reason": reason} if reason else {}
    properties = {"plan": NUMBA, "dense": FP32, **told}
    return Choice(lambda: Forward(weights), Staging.gather_distinct, properties)


def doubt(lane: Lane, reference: Reference, dlrm: Dlrm) -> str:
    """Return on which seeded probe the two differ, or ""."""
    for inputs, tolerance in _probes(dlrm):
        ours, theirs = lane.run(inputs).astype(np.float64), reference.run(inputs)
        # Not "greater than": it must not pass if it is no number.
        if not (np.abs(ours - theirs) <= tolerance * np.maximum(1, np.abs(theirs))).all():
            gap = float(np.abs(ours - theirs).max())
            return f"{len(theirs)} probe rows differ by {gap:.3g}"
    return ""


def _probes(dlrm: Dlrm) -> Iterator[tuple[dict[str, Array], float]]:
    random = np.random.default_rng(20261129)
    for rows in _ROWS:
        lengths = random.choice(np.asarray(_BAGS, np.int32), (len(dlrm.tables), rows))
        yield _probe(dlrm, random, lengths), _TOLERANCE
    yield _probe(dlrm, random, np.zeros((len(dlrm.tables), 5), np.int32)), _TOLERANCE
    ones = np.ones((len(dlrm.tables), 17), np.int32)
    yield _probe(dlrm, random, ones, scale=_LARGE), _LARGE_TOLERANCE


def _probe(
    dlrm: Dlrm, random: np.random.Generator, lengths: npt.NDArray[np.int32], scale: float = 1.0
) -> dict[str, Array]:
    """Return inputs with these lengths, (features, rows); ids are anywhere in their tables."""
    counts = lengths.sum(axis=1).tolist()
    ids = [random.integers(0, len(t.data), n) for t, n in zip(dlrm.tables, counts, strict=True)]
    dense = random.standard_normal((lengths.shape[1], dlrm.dense_features), np.float32)
    return {
        DENSE: dense * np.float32(scale),
        f"{IDS}.lengths": lengths.reshape(-1),
        f"{IDS}.values": np.concatenate(ids).astype(np.int64),
    }
