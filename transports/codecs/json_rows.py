"""The row-wise JSON layout: one list per dense row, one list of ids per bag."""

from collections.abc import Callable
from functools import partial
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
    require,
)
from transports.codecs.strict_json import shown


def decode(document: dict[str, Any], spec: ModelSpec) -> tuple[int, dict[str, Array]]:
    """Return the rows and the key-major inputs. Raises ServingError naming the fault."""
    columns = features(document, spec) if SPARSE in document else {}
    rows = _rows(document, columns, spec)
    check_rows(rows, spec)
    _check_columns(columns, rows)
    inputs: dict[str, Array] = {}
    if DENSE in document:
        inputs[DENSE] = _dense(document[DENSE], dense_width(spec))
    if columns:
        inputs.update(_bags(columns, rows, spec))
    return rows, inputs


def _rows(document: dict[str, Any], columns: dict[str, Any], spec: ModelSpec) -> int:
    if DENSE not in document:
        first: Any = next(iter(columns.values()), [])
        return len(first) if type(first) is list else 0
    dense = document[DENSE]
    if type(dense) is not list:
        raise invalid(f"{DENSE} is {shown(dense)}, expected a list of rows")
    if dense and type(dense[0]) in {int, float}:  # else its values would be counted as rows
        raise invalid(
            f"{DENSE} is a flat list of {len(dense)} values, expected a list of"
            f" {dense_width(spec)} numbers for each row, as in [[0.1, ...]]; a flat list needs the"
            " field rows"
        )
    return len(dense)


def _dense(rows: list[Any], width: int) -> Array:
    require(list, rows, lambda row: f"{DENSE} row {row}", f"a list of {width} numbers")
    if not set(map(len, rows)) <= {width}:
        row = next(row for row, values in enumerate(rows) if len(values) != width)
        raise invalid(f"{DENSE} row {row} has {len(rows[row])} values, expected {width}")
    array = floats(
        flattened(rows), lambda index: f"{DENSE} row {index // width}, value {index % width},"
    )
    return array.reshape(len(rows), width)


def _check_columns(columns: dict[str, Any], rows: int) -> None:
    for name, column in columns.items():
        if type(column) is dict:
            raise invalid(f"{SPARSE}.{name} is an object: the columnar form needs the field rows")
        if type(column) is not list:
            raise invalid(f"{SPARSE}.{name} is {shown(column)}, expected a list of lists of ids")
        if len(column) != rows:
            raise invalid(f"{SPARSE}.{name} has {len(column)} rows, the request has {rows}")


def _bags(columns: dict[str, list[Any]], rows: int, spec: ModelSpec) -> dict[str, Array]:
    names = tuple(columns)
    # No functions within this one that call each other: compiled they are a cycle, which keeps the
    # whole document until the collector comes by, and makes a request of 100 rows a third dearer.
    bag = partial(_bag, names, rows)
    bags = flattened(columns.values())
    require(list, bags, bag, "a list of ids")
    lengths = np.fromiter(map(len, bags), dtype_of(spec, "lengths"), len(bags))
    entry = partial(_entry, bag, bags)
    return {
        f"{SPARSE}.lengths": lengths.reshape(len(names), rows),
        f"{SPARSE}.values": ids(flattened(bags), lambda: _counts(columns), entry, spec),
    }


def _bag(names: tuple[str, ...], rows: int, index: int) -> str:
    return f"{SPARSE}.{names[index // rows]} row {index % rows}"


def _entry(bag: Callable[[int], str], bags: list[list[Any]], index: int) -> str:
    ends = np.cumsum(list(map(len, bags)))
    found = int(np.searchsorted(ends, index, side="right"))
    return f"{bag(found)}, id {index - int(ends[found]) + len(bags[found])},"


def _counts(columns: dict[str, list[Any]]) -> dict[str, int]:
    return {name: sum(map(len, column)) for name, column in columns.items()}
