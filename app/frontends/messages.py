"""The payloads about requests: JSON for what is small, tensors as they lie in memory.

Sans-IO. What a front end says is checked as what a stranger says would be.
"""

import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import orjson

from app.frontends.slots import ALIGNED_BYTES, Slot, Whole
from app.frontends.texts import Texts
from app.frontends.wire import WireError
from app.tracing.far import FarTrace
from scheduler.errors import Code, ServingError
from scheduler.often import often_made
from scheduler.types import Array, InferRequest, InferResponse, Timing

_LENGTH = struct.Struct("<I")
_NUMBERS = struct.Struct("<Q")
# Everything that a tensor may be of; nothing with a pointer in it.
_DTYPES = {
    name: np.dtype(name)
    for name in (
        "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
        "float16", "float32", "float64",
    )
}  # fmt: skip
# A look-up here is ten times as fast as what numpy does for a dtype's name.
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_MAX_DIMENSIONS = 8
_TEXT = {str}

# Of a tensor: its name, its dtype, its shape, where it begins.
Placed: TypeAlias = tuple[str, str, tuple[int, ...], int]
# The two ids of a trace.
TraceIds: TypeAlias = tuple[str, str]


@often_made(frozen=True, slots=True, eq=False)
class Sent:
    """A request as the engine gets it; ``deadline_s`` is on the clock that all processes share.

    ``placed`` says where its inputs lie in ``slot``, ``texts`` what is to be looked up, and
    ``timeout_s`` is the client's own.
    """

    model: str
    rows: int
    id: str
    timeout_s: float
    outputs: tuple[str, ...]
    priority: int
    version: str
    key: str
    shared: Mapping[str, tuple[int, ...]] | None
    deadline_s: float
    slot: Slot
    placed: tuple[Placed, ...]
    trace: TraceIds | None
    texts: tuple[Texts, ...]

    def request(self, inputs: Mapping[str, Array], left_s: float) -> InferRequest:
        """Return the request with its ``inputs``, to be answered within ``left_s``."""
        return InferRequest(
            self.model, self.rows, inputs, self.id, left_s, self.outputs, self.priority,
            self.version, self.key, self.shared, FarTrace(*self.trace) if self.trace else None,
        )  # fmt: skip


def place(inputs: Mapping[str, Array], start: int = ALIGNED_BYTES) -> tuple[list[Placed], int]:
    """Return where each of ``inputs`` is to lie behind ``start`` bytes, and where all end.

    Raises ValueError for what cannot be passed on.
    """
    placed: list[Placed] = []
    for name, array in inputs.items():
        # In the machine's own order of bytes, into which writing turns any other.
        dtype = _NAMES.get(array.dtype) or _NAMES.get(array.dtype.newbyteorder("="))
        if dtype is None or array.ndim > _MAX_DIMENSIONS:
            raise ValueError(f"{name}: {array.dtype} of {array.ndim} dimensions")
        placed.append((name, dtype, array.shape, start))
        start = _aligned(start + array.nbytes)
    return placed, start


def write(whole: Whole, placed: Iterable[Placed], inputs: Mapping[str, Array]) -> None:
    """Copy ``inputs`` to where they were placed in ``whole``."""
    for name, dtype, shape, start in placed:
        _view(whole, dtype, shape, start)[...] = inputs[name]


def read(whole: Whole, placed: Iterable[Placed]) -> dict[str, Array]:
    """Return views of what lies in ``whole``. Raises WireError for what is not within it."""
    return {name: _view(whole, dtype, shape, start) for name, dtype, shape, start in placed}


def encode_request(
    request: InferRequest,
    now_s: float,
    slot: Slot,
    placed: Iterable[Placed],
    texts: Sequence[Texts] = (),
) -> bytes:
    """Return what the engine has to know. Raises TypeError for what no JSON can say."""
    endless = request.timeout_s == math.inf
    trace = request.trace
    fields = (
        (slot.offset, slot.size, slot.generation),
        request.model, request.rows, request.id,
        None if endless else request.timeout_s,
        None if endless else now_s + request.timeout_s,
        request.outputs, request.priority, request.version, request.key, request.shared,
        trace and (trace.trace_id, trace.span_id),
        list(placed), [tuple(each) for each in texts],
    )  # fmt: skip
    return orjson.dumps(fields)


def decode_request(payload: bytes) -> Sent:
    """Return the request in ``payload``. Raises WireError."""
    try:
        (slot, model, rows, name, timeout_s, deadline_s, outputs, priority, version, key, shared,
         trace, placed, texts) = orjson.loads(payload)  # fmt: skip
        # One set of types takes a third of what a loop does.
        if {*map(type, (model, name, version, key, *outputs))} != _TEXT:
            raise ValueError("a text is wrong")
        if type(rows) is not int or type(priority) is not int:
            raise ValueError("rows or priority is wrong")
        where = _placed(placed)
        return Sent(
            model, rows, name,
            math.inf if timeout_s is None else float(timeout_s),
            tuple(outputs), priority, version, key,
            None if shared is None else {one: _numbers(which) for one, which in shared.items()},
            math.inf if deadline_s is None else float(deadline_s),
            Slot(*_numbers(slot)), where, _trace(trace),
            _texts(texts, where) if texts else (),
        )  # fmt: skip
    except (ValueError, TypeError, AttributeError) as error:
        raise WireError(f"a request that is none: {error}") from error


def encode_answer(response: InferResponse) -> bytes:
    """Return ``response`` with its outputs behind one another. Raises ValueError."""
    placed, _ = place(response.outputs, 0)
    head = orjson.dumps((response.model, response.version, response.timing.numbers, placed))
    parts = [_LENGTH.pack(len(head)), head]
    size = _LENGTH.size + len(head)
    for (_, dtype, _, _), array in zip(placed, response.outputs.values(), strict=True):
        content = np.ascontiguousarray(array, _DTYPES[dtype]).tobytes()
        parts += [bytes(_aligned(size) - size), content]
        size = _aligned(size) + len(content)
    return b"".join(parts)


def decode_answer(payload: bytes) -> InferResponse:
    """Return the answer in ``payload``, of which its outputs are views. Raises WireError."""
    try:
        (length,) = _LENGTH.unpack_from(payload)
        head = orjson.loads(payload[_LENGTH.size : _LENGTH.size + length])
        model, version, timing, placed = head
        start = min(_aligned(_LENGTH.size + length), len(payload))
        whole = np.frombuffer(payload, np.uint8, len(payload) - start, start)
        return InferResponse(model, version, read(whole, _placed(placed)), Timing(*timing))
    except (ValueError, TypeError, struct.error) as error:
        raise WireError(f"an answer that is none: {error}") from error


def encode_refusal(error: ServingError) -> bytes:
    """Return ``error`` for the transports; what only observers hear of is left out."""
    return orjson.dumps((error.code.value, error.detail, error.retry_after_s, error.version))


def decode_refusal(payload: bytes) -> ServingError:
    """Return the error in ``payload``. Raises WireError."""
    try:
        code, detail, retry_after_s, version = orjson.loads(payload)
        error = ServingError(Code(code), detail, retry_after_s)
    except (ValueError, TypeError) as reason:
        raise WireError(f"a refusal that is none: {reason}") from reason
    error.version = version
    return error


def encode_numbers(numbers: Iterable[int]) -> bytes:
    """Return the numbers of requests."""
    return b"".join(map(_NUMBERS.pack, numbers))


def decode_numbers(payload: bytes) -> Iterator[int]:
    """Yield the numbers in ``payload``. Raises WireError."""
    if len(payload) % _NUMBERS.size:
        raise WireError(f"{len(payload)} bytes are no list of numbers")
    return (number for (number,) in _NUMBERS.iter_unpack(payload))


def _placed(raw: Any) -> tuple[Placed, ...]:
    placed = []
    for name, dtype, shape, start in raw:
        if type(name) is not str or dtype not in _DTYPES or len(shape) > _MAX_DIMENSIONS:
            raise ValueError("a tensor is wrong")
        if type(start) is not int or start < 0:
            raise ValueError("a place is wrong")
        placed.append((name, dtype, _numbers(shape), start))
    return tuple(placed)


def _texts(raw: Any, placed: Iterable[Placed]) -> tuple[Texts, ...]:
    lengths = {name: shape[0] for name, dtype, shape, _ in placed
               if dtype == "int64" and len(shape) == 1}  # fmt: skip
    found = []
    for name, feature, positions, texts in raw:
        _check(type(feature) is str and len(positions) == len(texts) > 0, "a feature of texts")
        _check(name in lengths and max(_numbers(positions)) < lengths[name], "a text's place")
        _check(all(type(text) is str for text in texts), "a text")
        found.append(Texts(name, feature, positions, texts))
    return tuple(found)


def _numbers(raw: Any) -> tuple[int, ...]:
    # A plain loop: four of these a tensor are what decoding a request costs.
    for number in raw:
        if type(number) is not int or number < 0:
            raise ValueError("a number is wrong")
    return tuple(raw)


def _trace(raw: Any) -> TraceIds | None:
    if raw is None:
        return None
    trace_id, span_id = raw
    bytes.fromhex(trace_id + span_id)
    _check(len(trace_id) == 32 and len(span_id) == 16, "a trace")
    return trace_id, span_id


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"{what} is wrong")


def _view(whole: Whole, dtype: str, shape: tuple[int, ...], start: int) -> Array:
    size = math.prod(shape) * _DTYPES[dtype].itemsize
    if start % ALIGNED_BYTES or start > len(whole) or size > len(whole) - start:
        raise WireError(f"no tensor of {size} bytes lies at {start} of {len(whole)}")
    try:
        return np.ndarray(shape, _DTYPES[dtype], whole, start)
    except ValueError as error:  # of no size, and beyond what numpy counts
        raise WireError(f"no tensor has the shape {shape}") from error


def _aligned(size: int) -> int:
    return -(-size // ALIGNED_BYTES) * ALIGNED_BYTES
