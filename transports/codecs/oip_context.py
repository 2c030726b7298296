"""The context of candidates in the Open Inference Protocol: a request of one row beside theirs.

Its tensors have the names of any request's with ``context.`` before them, and its ids are written
in any way that ``oip_ids`` knows. Where position alone tells which of the model's columns or
features they are, another tensor may say so; without it they are the leading ones:

    context.float_features [1, 2], context.float_columns [2]
    context.id_list_features.lengths [2, 1] and .values [n], or context.id_list_features [1, 2],
        with context.id_list_columns [2]
    context.user.lengths [1], context.user.values [n], ...
"""

from collections.abc import Mapping, Sequence

from scheduler.errors import ServingError, invalid, shown
from scheduler.types import Array, ModelSpec
from transports.codecs.oip_ids import jagged_ids, read_inputs
from transports.codecs.ranking import (
    DENSE,
    LENGTHS,
    VALUES,
    Split,
    chosen,
    float_columns,
    id_features,
    in_both,
    nothing_left,
    split,
    takes_context,
)
from transports.codecs.spelled_out import Rows, expand

PREFIX = "context."
_TABLE = "id_list_features"
_FLOAT_COLUMNS, _ID_COLUMNS = "float_columns", "id_list_columns"
_FIXED = frozenset({DENSE, _FLOAT_COLUMNS, LENGTHS, VALUES, _TABLE, _ID_COLUMNS})


def context_property(spec: ModelSpec) -> dict[str, str]:
    """Return what a model's metadata say of a context, nothing if it takes none.

    Not as inputs, which tools that make up requests would fill.
    """
    if not takes_context(spec):
        return {}
    words = (
        "what all rows of a request share may come once: the tensors of a request of one row,"
        f" with {PREFIX} before their names; {PREFIX}{_FLOAT_COLUMNS} and {PREFIX}{_ID_COLUMNS}"
        " say which columns they are, by default the leading ones; the request itself has the rest"
    )
    return {"context": words}


def read_request(spec: ModelSpec, arrays: Mapping[str, Array]) -> Rows:
    """Return the rows and the inputs of a request, those of its context in every row.

    Raises ServingError (INVALID_REQUEST, PAYLOAD_TOO_LARGE).
    """
    shared = [name for name in arrays if name.startswith(PREFIX)]
    if not shared or not takes_context(spec):
        return Rows(*read_inputs(spec, arrays))
    # What the model itself calls so comes first.
    names = set(shared).difference([tensor.name for tensor in spec.inputs], _pair_names(spec))
    if not names:
        return Rows(*read_inputs(spec, arrays))
    context = {name.removeprefix(PREFIX): arrays[name] for name in shared if name in names}
    candidates = {name: array for name, array in arrays.items() if name not in names}
    return _with_context(spec, context, candidates)


def _with_context(
    spec: ModelSpec, context: dict[str, Array], candidates: Mapping[str, Array]
) -> Rows:
    _check_names(spec, context)
    parts = split(spec, _columns(spec, context), _features(spec, context))
    context.pop(_FLOAT_COLUMNS, None)
    context.pop(_ID_COLUMNS, None)
    try:
        _, shared = read_inputs(parts.context, context)
    except ServingError as refusal:
        raise ServingError(refusal.code, f"context: {refusal.detail}") from refusal
    rows, own = _candidates(parts, candidates)
    return expand(parts, shared, rows, own)


def _candidates(parts: Split, candidates: Mapping[str, Array]) -> tuple[int, Mapping[str, Array]]:
    _check_pairs(parts, candidates)
    if not any("rows" in tensor.shape for tensor in parts.candidates.inputs):
        raise nothing_left()
    try:
        return read_inputs(parts.candidates, candidates)
    except ServingError as refusal:
        raise parts.explained(refusal) from refusal


def _check_pairs(parts: Split, candidates: Mapping[str, Array]) -> None:
    """Refuse a pair among the candidates that is the context's."""
    jagged = jagged_ids(parts.context)
    for name in jagged.pair_names() if jagged else ():
        if name in candidates and name not in _FIXED:
            raise in_both(name.rpartition(".")[0])


def _check_names(spec: ModelSpec, context: Mapping[str, Array]) -> None:
    known = _FIXED.union(_pair_names(spec))
    for name in context:
        if name not in known:
            raise invalid(
                f"no input {shown(PREFIX + name)}; a context may have"
                f" {', '.join(sorted(_FIXED))} and a feature's own lengths and values"
            )


def _columns(spec: ModelSpec, context: Mapping[str, Array]) -> tuple[int, ...]:
    count = _size(context, DENSE, axis=1)
    given = _numbers(context, _FLOAT_COLUMNS)
    return chosen(f"{PREFIX}{_FLOAT_COLUMNS}", given, count, float_columns(spec))


def _features(spec: ModelSpec, context: Mapping[str, Array]) -> tuple[int, ...]:
    """Return the numbers of the features that ``context`` has, from their names or positions."""
    given = _numbers(context, _ID_COLUMNS)
    if VALUES in context and LENGTHS not in context:
        raise invalid(f"{PREFIX}{LENGTHS}: missing beside {PREFIX}{VALUES}")
    in_pairs = {name.rpartition(".")[0] for name in context if name not in _FIXED}
    if in_pairs and given is None:
        labels = enumerate(_labels(spec))
        return tuple(number for number, label in labels if label in in_pairs)
    count = _size(context, LENGTHS, axis=0) or _size(context, _TABLE, axis=1)
    return chosen(f"{PREFIX}{_ID_COLUMNS}", given, count, id_features(spec))


def _size(context: Mapping[str, Array], name: str, axis: int) -> int:
    array = context.get(name)
    if array is None:
        return 0
    if array.ndim != 2 or array.shape[1 - axis] != 1 or not array.size:
        wanted = "[1, columns]" if axis else "[features, 1]"
        raise invalid(f"{PREFIX}{name}: expected shape {wanted}, got {list(array.shape)}")
    return int(array.shape[axis])


def _numbers(context: Mapping[str, Array], name: str) -> Sequence[int] | None:
    array = context.get(name)
    if array is None:
        return None
    if array.ndim != 1 or array.dtype.kind != "i":
        raise invalid(
            f"{PREFIX}{name}: expected one dimension of signed integers,"
            f" got {array.dtype} {list(array.shape)}"
        )
    columns: list[int] = array.tolist()
    return columns


def _labels(spec: ModelSpec) -> tuple[str, ...]:
    lengths = spec.input(LENGTHS)
    return lengths.labels if lengths else ()


def _pair_names(spec: ModelSpec) -> list[str]:
    jagged = jagged_ids(spec)
    return jagged.pair_names() if jagged else []
