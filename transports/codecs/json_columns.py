"""The columnar JSON layout: ``rows``, flat dense values, lengths and values per feature."""

from typing import Any

import numpy as np

from scheduler.errors import invalid
from scheduler.types import Array, ModelSpec
from scheduler.validate import check_rows
from transports.codecs.json_values import (
    DENSE,
    SPARSE,
    dense_width,
    dtype_of,
    features,
    flattened,
    floats,
    ids,
    integers,
)
from transports.codecs.strict_json import shown


def decode(document: dict[str, Any], spec: ModelSpec) -> tuple[int, dict[str, Array]]:
    """Return the rows and the key-major inputs. Raises ServingError naming the fault."""
    rows = document["rows"]
    if type(rows) is not int or rows < 0:
        raise invalid(f"rows is {shown(rows)}, expected an integer of 0 or more")
    check_rows(rows, spec)
    inputs: dict[str, Array] = {}
    if DENSE in document:
        inputs[DENSE] = _dense(document[DENSE], rows, dense_width(spec))
    if SPARSE in document:
        columns = features(document, spec)
        for name, column in columns.items():
            _check_column(f"{SPARSE}.{name}", column, rows)
        inputs.update(_bags(columns, rows, spec))
    return rows, inputs


def _dense(flat: Any, rows: int, width: int) -> Array:
    if type(flat) is not list:
        raise invalid(f"{DENSE} is {shown(flat)}, expected a flat list of numbers")
    if len(flat) != rows * width:
        raise invalid(
            f"{DENSE} has {len(flat)} values, expected {rows * width}: {rows} rows x {width}"
        )
    return floats(flat, lambda index: f"{DENSE}[{index}]").reshape(rows, width)


def _check_column(field: str, column: Any, rows: int) -> None:
    if type(column) is not dict:
        raise invalid(f"{field} is {shown(column)}, expected lengths and values beside rows")
    if column.keys() != {"lengths", "values"}:
        found = ", ".join(shown(name) for name in list(column)[:3]) or "nothing"
        raise invalid(f"{field} has {found}, expected exactly lengths and values")
    for part in ("lengths", "values"):
        if type(column[part]) is not list:
            raise invalid(f"{field}.{part} is {shown(column[part])}, expected a flat list")
    if len(column["lengths"]) != rows:
        raise invalid(f"{field}.lengths has {len(column['lengths'])} entries, expected {rows} rows")


def _bags(columns: dict[str, dict[str, list[Any]]], rows: int, spec: ModelSpec) -> dict[str, Array]:
    names = tuple(columns)

    def length(index: int) -> str:
        return f"{SPARSE}.{names[index // rows]}.lengths[{index % rows}]"

    def value(index: int) -> str:
        ends = np.cumsum([len(column["values"]) for column in columns.values()])
        found = int(np.searchsorted(ends, index, side="right"))
        start = int(ends[found]) - len(columns[names[found]]["values"])
        return f"{SPARSE}.{names[found]}.values[{index - start}]"

    counts = flattened(column["lengths"] for column in columns.values())
    flat = flattened(column["values"] for column in columns.values())
    lengths = integers(counts, length, dtype_of(spec, "lengths")).reshape(len(names), rows)
    _check_sums(columns)
    return {
        f"{SPARSE}.lengths": lengths,
        f"{SPARSE}.values": ids(flat, lambda: _counts(columns), value, spec),
    }


def _check_sums(columns: dict[str, dict[str, list[Any]]]) -> None:
    """Compare per feature: sums that agree only in total would move ids between features."""
    for name, column in columns.items():
        # Python's sum: lengths from the wire may add up past 2^63.
        total, found = sum(column["lengths"]), len(column["values"])
        if total != found:
            raise invalid(f"{SPARSE}.{name}.lengths sum to {total}, but values has {found} entries")


def _counts(columns: dict[str, dict[str, list[Any]]]) -> dict[str, int]:
    return {name: len(column["values"]) for name, column in columns.items()}
