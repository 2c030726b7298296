"""The context of candidates in JSON: what they share, beside either layout of what they do not.

    {"context": {"float_features": [0.1, 0.2], "float_columns": [0, 2],
                 "id_list_features": {"user": [3], "history": [17, 4]}},
     "float_features": [[0.5], [0.6]], "id_list_features": {"item": [[8], [9]]}}

``float_columns`` says which columns of the model the context's numbers are; absent: the leading
ones. The candidates have the columns and features that are left, in the model's order.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from scheduler.errors import ServingError, invalid
from scheduler.types import Array, ModelSpec
from transports.codecs.json_values import (
    DENSE,
    SPARSE,
    check_tensor_fields,
    dtype_of,
    feature_names,
    flattened,
    floats,
    ids,
    integers,
    unknown_feature,
)
from transports.codecs.ranking import (
    Split,
    chosen,
    float_columns,
    in_both,
    nothing_left,
    split,
    takes_context,
)
from transports.codecs.spelled_out import Rows, expand
from transports.codecs.strict_json import shown

# Reads one of the two layouts.
Decode: TypeAlias = Callable[[dict[str, Any], ModelSpec], tuple[int, dict[str, Array]]]

FIELD = "context"
_COLUMNS = "float_columns"
_FIELDS = (DENSE, _COLUMNS, SPARSE)


def decode(document: dict[str, Any], spec: ModelSpec, layout: Decode) -> Rows:
    """Return the rows and the key-major inputs of ``document``, the context in every row.

    Raises ServingError naming the fault.
    """
    if not takes_context(spec):
        raise invalid(f"model {spec.name} takes no {FIELD}")
    context = _checked_fields(document[FIELD])
    own = {field: document[field] for field in (DENSE, SPARSE, "rows") if field in document}
    if own.get(SPARSE) == {}:  # a context that has every feature leaves an empty object
        del own[SPARSE]
    bags = _bags(context.get(SPARSE, {}), own.get(SPARSE, {}), spec) if SPARSE in context else {}
    numbers = _numbers(context.get(DENSE, []))
    names = feature_names(spec) if bags else ()
    parts = split(
        spec,
        _columns(context, numbers.size, spec),
        [number for number, name in enumerate(names) if name in bags],
    )
    if not parts.candidates.inputs and "rows" not in own:
        raise nothing_left()
    rows, candidates = _candidates(own, parts, layout)
    return expand(parts, _inputs(numbers, bags, parts), rows, candidates)


def _checked_fields(context: Any) -> dict[str, Any]:
    if type(context) is not dict:
        raise invalid(f"{FIELD} is {shown(context)}, expected an object")
    for field in context:
        if field not in _FIELDS:
            raise invalid(
                f"{FIELD} has unknown field {shown(field)}, expected {', '.join(_FIELDS)}"
            )
    return context


def _candidates(own: dict[str, Any], parts: Split, layout: Decode) -> tuple[int, dict[str, Array]]:
    try:
        check_tensor_fields(own, parts.candidates)
        return layout(own, parts.candidates)
    except ServingError as refusal:
        raise parts.explained(refusal) from refusal


def _numbers(values: Any) -> Array:
    if type(values) is not list:
        raise invalid(f"{FIELD}.{DENSE} is {shown(values)}, expected a flat list of numbers")
    return floats(values, lambda index: f"{FIELD}.{DENSE}[{index}]")


def _columns(context: dict[str, Any], count: int, spec: ModelSpec) -> tuple[int, ...]:
    field, given = f"{FIELD}.{_COLUMNS}", context.get(_COLUMNS)
    if _COLUMNS in context:
        if type(given) is not list:
            raise invalid(f"{field} is {shown(given)}, expected a list of columns")
        integers(given, lambda index: f"{field}[{index}]", np.dtype(np.int64))
    return chosen(field, given, count, float_columns(spec))


def _bags(members: Any, own: Any, spec: ModelSpec) -> dict[str, list[Any]]:
    """Return the context's bags in the model's order."""
    field, names = f"{FIELD}.{SPARSE}", feature_names(spec)
    if type(members) is not dict:
        raise invalid(f"{field} is {shown(members)}, expected an object of features")
    known = frozenset(names)
    for name, bag in members.items():
        if name not in known:
            raise unknown_feature(field, name, names)
        if type(bag) is not list:
            raise invalid(f"{field}.{name} is {shown(bag)}, expected a list of ids")
        if type(own) is dict and name in own:
            raise in_both(name)
    return {name: members[name] for name in names if name in members}


def _inputs(numbers: Array, bags: dict[str, list[Any]], parts: Split) -> dict[str, Array]:
    """Return the context as a request of one row."""
    inputs: dict[str, Array] = {}
    if parts.columns:
        inputs[DENSE] = numbers.reshape(1, -1)
    if bags:

        def place(index: int) -> str:
            ends = np.cumsum(list(map(len, bags.values())))
            found = int(np.searchsorted(ends, index, side="right"))
            name, bag = list(bags.items())[found]
            return f"{FIELD}.{SPARSE}.{name}[{index - int(ends[found]) + len(bag)}]"

        spec = parts.spec
        lengths = np.fromiter(map(len, bags.values()), dtype_of(spec, "lengths"), len(bags))
        inputs[f"{SPARSE}.lengths"] = lengths.reshape(-1, 1)
        flat = flattened(bags.values())
        inputs[f"{SPARSE}.values"] = ids(flat, lambda: _counts(bags), place, spec)
    return inputs


def _counts(bags: dict[str, list[Any]]) -> dict[str, int]:
    return {name: len(bag) for name, bag in bags.items()}
