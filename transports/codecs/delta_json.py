"""A small delta as JSON: ``{"id", "base", "tables": {NAME: {"rows": [], "values": [[]]}}}``."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from scheduler.backend import TableRows
from scheduler.deltas import Delta
from scheduler.errors import invalid
from transports.codecs.json_values import flattened, floats, integers
from transports.codecs.strict_json import parse_object, shown

_FIELDS = ("id", "base", "model", "version", "tables")


def digest(body: bytes) -> str:
    """Return the name of a delta that has none: what it contains."""
    return hashlib.blake2b(body, digest_size=16).hexdigest()


def decode(body: bytes) -> Delta:
    """Return the delta in ``body``. Raises ServingError (INVALID_REQUEST) naming the field."""
    document = parse_object(body)
    for name in document:
        if name not in _FIELDS:
            raise invalid(f"unknown field {shown(name)}; known: {', '.join(_FIELDS)}")
    tables = document.get("tables")
    if not isinstance(tables, dict):
        raise invalid(f"tables is {shown(tables)}, expected an object of tables")
    return Delta(
        id=text(document, "id") or digest(body),
        tables=tuple(_table(name, table) for name, table in tables.items()),
        model=text(document, "model"),
        version=text(document, "version"),
        base=_base(document),
    )


def text(fields: Mapping[str, Any], name: str) -> str:
    """Return a field that is a text if it is there, else "". Raises ServingError."""
    value = fields.get(name, "")
    if not isinstance(value, str):
        raise invalid(f"{name} is {shown(value)}, expected a text")
    return value


def _base(document: Mapping[str, Any]) -> int | None:
    base = document.get("base")
    if base is not None and type(base) is not int:
        raise invalid(f"base is {shown(base)}, expected a whole number")
    return base


def _table(name: str, table: Any) -> TableRows:
    field = f"tables.{name}"
    if not isinstance(table, dict) or table.keys() != {"rows", "values"}:
        raise invalid(f"{field} is {shown(table)}, expected an object of exactly rows and values")
    rows, values = table["rows"], table["values"]
    if not isinstance(rows, list) or not isinstance(values, list):
        raise invalid(f"{field}: rows and values are lists")
    if len(rows) != len(values):
        raise invalid(f"{field} has {len(rows)} rows, but values for {len(values)}")
    for at, row in enumerate(values):
        if not isinstance(row, list):
            raise invalid(f"{field}.values[{at}] is {shown(row)}, expected a list of numbers")
        if len(row) != len(values[0]):
            raise invalid(
                f"{field}.values[{at}] has {len(row)} numbers, the first has {len(values[0])}"
            )
    numbers = integers(rows, lambda at: f"{field}.rows[{at}]", np.dtype(np.int64))
    flat = floats(flattened(values), lambda at: _place(field, values, at))
    width = len(values[0]) if values else 0
    return TableRows(
        name,
        np.asarray(numbers, np.int64),
        np.asarray(flat, np.float32).reshape(len(values), width),
    )


def _place(field: str, values: list[list[Any]], at: int) -> str:
    row, column = divmod(at, max(1, len(values[0])))
    return f"{field}.values[{row}][{column}]"
