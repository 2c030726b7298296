"""The nouns every layer shares: tensors, requests, batches, answers; all immutable, on numpy.

What holds arrays is equal only to itself: numpy has no single truth for two arrays.

What is made for every request has an ``__init__`` of its own, which is compiled (decision 58): the
one that ``dataclass`` writes takes ten times as long, and so does a named tuple. ``Final`` is what
keeps their fields.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.generic]
Dim: TypeAlias = int | Literal["rows", "*"]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Describe one named input or output.

    ``shape`` mixes fixed sizes, ``"rows"`` (the request's rows) and ``"*"`` (any size), so jagged
    ids are ``lengths (26, "rows")`` and ``values ("*",)``. A request may send any dtype that
    casts to ``dtype`` without loss and is of the same kind (int32 ids for an int64 input).
    ``labels`` names the entries of the fixed axis in wire order (feature names), or is empty.
    ``lengths`` of a ``("*",)`` input names the input that says how many of its values belong to
    each feature and row, key-major as TorchRec has it: what cuts a jagged request by rows. An
    ``optional`` input may be left out; requests with and without it never share a batch.
    """

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[Dim, ...]
    labels: tuple[str, ...] = ()
    lengths: str = ""
    optional: bool = False


class Vocabulary(Protocol):
    """Turn a feature's texts into row numbers."""

    def ids_of(self, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return the row of each of ``texts``; of one that is not known, what no table has."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Describe what a loaded model takes and gives.

    ``max_batch_rows`` bounds one forward. ``max_request_rows`` bounds one request, which is split
    over batches where it is larger than one; the scheduler sets it, 0 stands for one batch.
    ``id_policies`` has what becomes of ids without a row, ``vocabularies`` what turns texts into
    ids, by feature.
    """

    name: str
    version: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_rows: int
    properties: Mapping[str, str] = field(default_factory=dict)
    max_request_rows: int = 0
    id_policies: Mapping[str, str] = field(default_factory=dict)
    vocabularies: Mapping[str, Vocabulary] = field(default_factory=dict)

    @property
    def takes_any_id(self) -> bool:
        """Whether some ids without a row are served, so that any 64 bits may be one."""
        return not {"reject"}.issuperset(self.id_policies.values())

    def input(self, name: str) -> TensorSpec | None:
        """Return the input called ``name``, or None."""
        return next((spec for spec in self.inputs if spec.name == name), None)


class Trace(Protocol):
    """One request's span, for whoever watches to know it again: its ids in hexadecimal (W3C)."""

    trace_id: str
    span_id: str


@dataclass(slots=True, eq=False)
class InferRequest:
    """Ask one model for scores of ``rows`` rows.

    ``model`` may be empty: the only model served; ``version``, a version or a label, too: the one
    that serves by default or, of several with a share each, the one that ``key`` (else ``id``)
    belongs to.
    ``inputs`` are read, never written, and may view the bytes that came off the wire; they stay
    valid while the request is referenced. ``timeout_s`` counts from the call of ``Engine.infer``.
    ``outputs`` empty means all. ``priority`` 0 is served first. ``trace`` is what the observer
    called the request, if it is traced.

    ``shared`` says what all rows have the same: by input, which entries of its fixed axis; the
    values of a jagged input go with its lengths. ``inputs`` spell it out for every row all the
    same, so that it is a hint, with which a backend may do once what it would for each row.
    """

    model: Final[str]
    rows: Final[int]
    inputs: Final[Mapping[str, Array]]
    id: Final[str]
    timeout_s: Final[float]
    outputs: Final[tuple[str, ...]]
    priority: Final[int]
    version: Final[str]
    key: Final[str]
    shared: Final[Mapping[str, tuple[int, ...]] | None]
    trace: Final[Trace | None]

    def __init__(  # noqa: PLR0913, PLR0917  # its fields
        self,
        model: str,
        rows: int,
        inputs: Mapping[str, Array],
        id: str = "",  # noqa: A002  # as it is called everywhere
        timeout_s: float = math.inf,
        outputs: tuple[str, ...] = (),
        priority: int = 0,
        version: str = "",
        key: str = "",
        shared: Mapping[str, tuple[int, ...]] | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.model = model
        self.rows = rows
        self.inputs = inputs
        self.id = id
        self.timeout_s = timeout_s
        self.outputs = outputs
        self.priority = priority
        self.version = version
        self.key = key
        self.shared = shared
        self.trace = trace

    @property
    def size_bytes(self) -> int:
        """Bytes of all input arrays: what the request holds in the queue."""
        return sum([array.nbytes for array in self.inputs.values()])

    def with_inputs(self, inputs: Mapping[str, Array]) -> "InferRequest":
        """Return the same request for other ``inputs``; a fifth of what ``replace`` takes."""
        return InferRequest(
            self.model, self.rows, inputs, self.id, self.timeout_s, self.outputs, self.priority,
            self.version, self.key, self.shared, self.trace,
        )  # fmt: skip


class Batch:
    """Requests that share one forward, in order; ``rows`` is those of all together."""

    def __init__(self, requests: tuple[InferRequest, ...]) -> None:
        self.requests: Final = requests
        self.rows: Final[int] = sum([request.rows for request in requests])

    def slices(self) -> Iterator[slice]:
        """Yield each request's rows within the batch."""
        start = 0
        for request in self.requests:
            yield slice(start, start + request.rows)
            start += request.rows


@dataclass(slots=True)
class Timing:
    """Say where one request's time went (seconds) and how many rows shared its forward.

    A request split over batches has the wait for its first, the sums of all, the largest batch.
    """

    queue_s: Final[float]
    compute_s: Final[float]
    batch_rows: Final[int]
    gather_s: Final[float]

    def __init__(
        self, queue_s: float, compute_s: float, batch_rows: int, gather_s: float = 0.0
    ) -> None:
        self.queue_s = queue_s
        self.compute_s = compute_s
        self.batch_rows = batch_rows
        self.gather_s = gather_s

    @property
    def numbers(self) -> tuple[float, float, int, float]:
        """What it is made of, in its order."""
        return self.queue_s, self.compute_s, self.batch_rows, self.gather_s


@dataclass(slots=True, eq=False)
class InferResponse:
    """Answer one request: arrays whose first axis is the request's rows (views of the batch's)."""

    model: Final[str]
    version: Final[str]
    outputs: Final[Mapping[str, Array]]
    timing: Final[Timing]

    def __init__(
        self, model: str, version: str, outputs: Mapping[str, Array], timing: Timing
    ) -> None:
        self.model = model
        self.version = version
        self.outputs = outputs
        self.timing = timing
