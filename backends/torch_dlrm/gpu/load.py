"""Put a model on a GPU: lanes, graphs and the kernel of the interaction, each proven or dropped."""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from backends.dlrm.gather import DENSE, IDS
from backends.jagged import JaggedLayout
from backends.torch_dlrm.device import Module
from backends.torch_dlrm.gpu.faults import Fault, fault_of
from backends.torch_dlrm.gpu.forward import (
    Forward,
    LeanForward,
    artifact_forward,
    lean_parts,
)
from backends.torch_dlrm.gpu.hardware import Gpu
from backends.torch_dlrm.gpu.interaction import pick
from backends.torch_dlrm.gpu.lane import Lane
from backends.torch_dlrm.gpu.limit import RowLimit
from backends.torch_dlrm.gpu.packing import Form, Packed, Packer, buckets_up_to
from backends.torch_dlrm.gpu.tables import FbgemmLookup, check_tables, place
from backends.torch_dlrm.options import MAP, OFF, TORCH, UVM, TorchDlrmOptions
from backends.torch_dlrm.probes import Forward as ProbeForward
from backends.torch_dlrm.recognise import NotRecognisedError
from backends.torch_dlrm.serving import Serving
from backends.torch_dlrm.weights import Dlrm
from scheduler.errors import DeviceLostError, LoadError, ServingError
from scheduler.types import Array, Batch, InferRequest

_log = logging.getLogger(__name__)

# Ids a bag for which graphs have room on average: 3.4 MB at the reference sizes.
_IDS_A_BAG = 16
# Tells why a forward may not stand for the artifact's, or "".
Proof = Callable[[ProbeForward], str]


class GraphsOffError(Exception):
    """Say why there can be no CUDA graphs."""


@dataclass(frozen=True, slots=True, eq=False)
class _Room:
    """What the lanes of one model have in common."""

    gpu: Gpu
    form: Form
    lanes: int
    most_rows: int

    @property
    def size_bytes(self) -> int:
        """Bytes of a batch of most rows that has a usual number of ids."""
        bags = self.most_rows * len(self.form.layout.features)
        return self.form.size_bytes(self.most_rows, bags * _IDS_A_BAG)


@dataclass(frozen=True, slots=True, eq=False)
class _Attempt:
    """Lanes over one forward, as far as memory reached."""

    room: _Room
    limit: RowLimit
    lanes: Sequence[Lane]
    buckets: tuple[int, ...]

    def packer(self) -> Packer:
        """Return a packer with a pinned buffer of its own."""
        room = self.room
        return Packer(room.form, self.buckets, room.size_bytes, room.gpu.pinned)

    def make_gather(self) -> Callable[[Batch], Packed]:
        """Return a gather that refuses what is too large for the memory that there is now."""
        packer = self.packer()

        def gather(batch: Batch) -> Packed:
            self.limit.check(batch.rows)
            return packer.gather(batch)

        return gather

    def serving(self, properties: dict[str, str]) -> Serving:
        """Return the lanes as what serves."""
        lanes = [lane.run for lane in self.lanes]
        described = {**properties, **self.room.gpu.facts()}
        return Serving(lanes, self.make_gather, self.limit.rows, described)


def lean_on_gpu(
    options: TorchDlrmOptions, dlrm: Dlrm, output: str, lanes: int, proof: Proof, gpu: Gpu
) -> Serving:
    """Return the lean plan on ``gpu``, proven as it will run.

    Raises NotRecognisedError saying why it may not serve, LoadError for what the options rule out.
    """
    if options.tables == MAP:
        raise LoadError(f"--tables {MAP} is for the CPU; on a GPU: copy or {UVM}")
    check_tables(dlrm.tables)
    layout = JaggedLayout(IDS, tuple(map(str, range(dlrm.tables.features))), dlrm.tables.rows)
    room = _Room(gpu, Form(layout, dlrm.dense_features), lanes, options.max_batch_rows)
    try:
        placed = place(dlrm.tables, gpu, managed=options.tables == UVM)
        lookup, scores = lean_parts(dlrm, placed, gpu)
        name, kernel, why = pick(options.interaction, dlrm, gpu)
        ways = {name: LeanForward(lookup, scores, output, kernel)}
        if kernel is not None:
            ways[TORCH] = LeanForward(lookup, scores, output, None)
        serving = _first_proven(room, ways, proof, graphs=options.graphs != OFF)
    except (RuntimeError, DeviceLostError) as error:
        raise LoadError(f"{gpu.device}: {error}") from error
    described = {
        "tables": options.tables,
        "lookup": "fbgemm" if isinstance(lookup, FbgemmLookup) else "triton",
        **({"interaction_reason": why} if why else {}),
    }
    return replace(serving, properties={**described, **serving.properties})


def artifact_on_gpu(module: Module, form: Form, lanes: int, most_rows: int, gpu: Gpu) -> Serving:
    """Return ``module``, which is on ``gpu``, as it came. Raises LoadError."""
    room = _Room(gpu, form, lanes, most_rows)
    try:
        attempt = _attempt(room, artifact_forward(module), graphs=False)
    except (RuntimeError, AttributeError, TypeError, DeviceLostError) as error:
        raise LoadError(f"the model file does not run as a TorchRec DLRM: {error}") from error
    return attempt.serving({"graphs": "off: the file's own copy to the host breaks a capture"})


def _first_proven(
    room: _Room, ways: dict[str, LeanForward], proof: Proof, *, graphs: bool
) -> Serving:
    """Return the first way that is proven, with graphs before without.

    Raises NotRecognisedError.
    """
    doubt, off = "", "" if graphs else "not wanted"
    for name, with_graphs in [(name, use) for use in (graphs, False) for name in ways]:
        try:
            attempt = _attempt(room, ways[name], graphs=with_graphs)
        except GraphsOffError as error:
            off = str(error)
            _log.warning("CUDA graphs are off: %s", off)
            continue
        doubt = _doubt(proof, attempt)
        if not doubt:
            rows = attempt.buckets
            state = f"{len(rows)} up to {rows[-1]} rows" if rows else f"off: {off}"
            return attempt.serving({"interaction": name, "graphs": state})
        off = off or doubt
        _log.warning("interaction %s, graphs %s: %s", name, with_graphs, doubt)
    raise NotRecognisedError(f"not proven to score as the artifact does: {doubt}")


def _attempt(room: _Room, forward: Forward, *, graphs: bool) -> _Attempt:
    """Return warm lanes over ``forward``. Raises GraphsOffError, LoadError or what CUDA raises."""
    limit = RowLimit(room.most_rows)
    lanes = [Lane(room.gpu, room.form, forward, limit, room.size_bytes) for _ in range(room.lanes)]
    buckets = _captured(room, lanes, limit) if graphs else ()
    attempt = _Attempt(room, limit, lanes, buckets)
    _warm_up(attempt)
    return attempt


def _captured(room: _Room, lanes: Sequence[Lane], limit: RowLimit) -> tuple[int, ...]:
    """Capture a graph of each bucket on each lane, the largest first, as far as memory reaches.

    Smaller ones then find room in what the largest took. Raises GraphsOffError.
    """
    found: list[int] = []
    for rows in reversed(buckets_up_to(room.most_rows)):
        if rows > limit.rows:
            continue
        try:
            for lane in lanes:
                lane.capture(rows)
        except RuntimeError as error:
            if fault_of(error) is not Fault.MEMORY:
                why = str(error).strip().partition("\n")[0]
                raise GraphsOffError(f"no capture of {rows} rows: {why}") from error
            room.gpu.release()
            limit.shrink(rows)
        else:
            found.append(rows)
    return tuple(reversed(found))


def _warm_up(attempt: _Attempt) -> None:
    """Run every size twice, the largest first, as far as memory reaches. Raises LoadError."""
    gather, limit, runs = attempt.packer().gather, attempt.limit, 0
    for rows in reversed(buckets_up_to(attempt.room.most_rows)):
        for lane in attempt.lanes:
            # Twice: TorchScript profiles its first run and optimises in its second.
            for _ in range(2 if rows <= limit.rows else 0):
                with suppress(ServingError):
                    lane.run(gather(_ones(attempt.room.form, rows)))
                    runs += 1
    if not runs:
        raise LoadError(f"{attempt.room.gpu.device} has no memory for a batch of one row")


def _ones(form: Form, rows: int) -> Batch:
    """Return a batch of ``rows`` rows with one id in each bag."""
    layout = form.layout
    inputs: dict[str, Array] = {
        DENSE: np.zeros((rows, form.dense_features), np.float32),
        layout.lengths: np.ones((len(layout.features), rows), np.int64),
        layout.values: np.zeros(len(layout.features) * rows, np.int64),
    }
    return Batch((InferRequest("", rows, inputs),))


def _doubt(proof: Proof, attempt: _Attempt) -> str:
    """Return why some lane may not stand for the artifact, or ""."""
    return next((why for lane in attempt.lanes if (why := proof(_probed(attempt, lane)))), "")


def _probed(attempt: _Attempt, lane: Lane) -> ProbeForward:
    """Return ``lane``'s own way for probes, from the gather to the copy back."""
    gather = attempt.packer().gather
    features = len(attempt.room.form.layout.features)

    def forward(inputs: dict[str, Array]) -> Array:
        rows, name = len(inputs[DENSE]), f"{IDS}.lengths"
        shaped = {**inputs, name: inputs[name].reshape(features, rows)}
        (scores,) = lane.run(gather(Batch((InferRequest("", rows, shaped),)))).values()
        return scores

    return forward
