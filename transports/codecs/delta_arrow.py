"""A delta as Arrow IPC (stream or file) or Parquet: columns ``table``, ``row`` and ``values``.

``values`` are lists of floats. The schema's metadata may have ``narsil.id``, ``narsil.base``,
``narsil.model`` and ``narsil.version``. pyarrow is imported when the first delta comes.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from scheduler.backend import TableRows
from scheduler.deltas import Delta
from scheduler.errors import Code, ServingError, invalid, shown
from transports.codecs.delta_json import digest
from transports.codecs.delta_sizes import check_unpacked, parquet_bytes, stream_bytes

COLUMNS = ("table", "row", "values")
# Unpacked: four million rows of 64 values.
MOST_BYTES = 1 << 30
_PARQUET, _ARROW_FILE = b"PAR1", b"ARROW1"
_FILE_HEAD_BYTES = 8
# What each message of a stream begins with.
_STREAM = b"\xff\xff\xff\xff"
# What a writer that was closed ends with; readers take a stream without it for a whole one.
_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"
_STEP_ROWS = 1 << 16
_UNREADABLE = "the delta cannot be read"
_KINDS = "it is no Arrow IPC file or stream and no Parquet, and was not said to be application/json"
_PREFIX = "narsil."
_METADATA = ("id", "base", "model", "version")


def decode(body: bytes) -> Delta:
    """Return the delta in ``body``, whichever of the formats it is.

    Raises ServingError: INVALID_REQUEST, PAYLOAD_TOO_LARGE, or UNSUPPORTED without pyarrow.
    """
    arrow = _pyarrow()
    try:
        schema, batches = _open(arrow, body)
        _check_schema(arrow, schema)
        table = arrow.Table.from_batches(list(_bounded(batches)), schema).combine_chunks()
        return _delta(arrow, table, body)
    except (arrow.ArrowException, OSError, ValueError, TypeError) as error:
        line = str(error).strip().partition("\n")[0]
        raise invalid(f"{_UNREADABLE}: {line:.300}") from error


def _pyarrow() -> Any:
    try:
        import pyarrow  # noqa: PLC0415
        import pyarrow.ipc  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ServingError(
            Code.UNSUPPORTED,
            "Arrow and Parquet need this project's extra 'arrow': pip install -e '.[arrow]' in its"
            " folder; a small delta may be JSON",
        ) from error
    return pyarrow


def _open(arrow: Any, body: bytes) -> tuple[Any, Iterator[Any]]:
    """Return the schema and what yields the record batches."""
    if body.startswith(_PARQUET):
        import pyarrow.parquet  # noqa: PLC0415

        schema = pyarrow.parquet.read_schema(arrow.BufferReader(body))
        _check_schema(arrow, schema)
        check_unpacked(parquet_bytes(body, schema), MOST_BYTES)
        # A name is kept once, however many rows have it.
        file = pyarrow.parquet.ParquetFile(arrow.BufferReader(body), read_dictionary=["table"])
        return file.schema_arrow, file.iter_batches(_STEP_ROWS, use_threads=False)
    stream = arrow.py_buffer(body)
    if body.startswith(_ARROW_FILE):
        if not body.endswith(_ARROW_FILE):
            raise invalid(f"{_UNREADABLE}: the Arrow file has no end, it was cut off")
        arrow.ipc.open_file(stream)  # raises if what is before its end is not whole
        stream = stream.slice(_FILE_HEAD_BYTES)  # a stream from here on
    elif not body.startswith(_STREAM):
        raise invalid(f"{_UNREADABLE}: {_KINDS if body else 'it has no bytes'}")
    elif not body.endswith(_STREAM_END):
        raise invalid(f"{_UNREADABLE}: the stream has no end, it was cut off")
    check_unpacked(stream_bytes(arrow, stream), MOST_BYTES)
    reader = arrow.ipc.open_stream(stream)
    return reader.schema, iter(reader)


def _check_schema(arrow: Any, schema: Any) -> None:
    if sorted(schema.names) != sorted(COLUMNS):
        names = ", ".join(map(shown, schema.names[:5]))
        raise invalid(f"the delta's columns are {names}; expected {', '.join(COLUMNS)}")
    types = {name: schema.field(name).type for name in COLUMNS}
    kind = arrow.types
    names = types["table"].value_type if kind.is_dictionary(types["table"]) else types["table"]
    lists = kind.is_list, kind.is_large_list, kind.is_fixed_size_list
    holds = {
        "table": kind.is_string(names) or kind.is_large_string(names),
        "row": kind.is_integer(types["row"]),
        "values": any(is_list(types["values"]) for is_list in lists)
        and kind.is_floating(types["values"].value_type),
    }
    wanted = {"table": "texts", "row": "whole numbers", "values": "lists of floats"}
    for name, fits in holds.items():
        if not fits:
            raise invalid(f"column {name!r} is {types[name]}, expected {wanted[name]}")


def _bounded(batches: Iterator[Any]) -> Iterator[Any]:
    total = 0
    for batch in batches:
        # What the lengths and offsets say must not lead out of the buffers.
        batch.validate(full=True)
        total += batch.nbytes
        check_unpacked(total, MOST_BYTES)
        yield batch


def _delta(arrow: Any, table: Any, body: bytes) -> Delta:
    for name in COLUMNS:
        if table.column(name).null_count:
            raise invalid(f"column {name!r} has nulls")
    given = _metadata(table.schema)
    base = given.get("base")
    if base is not None and not base.isdecimal():
        raise invalid(f"{_PREFIX}base is {shown(base)}, expected a whole number")
    return Delta(
        id=given.get("id") or digest(body),
        tables=tuple(_tables(arrow, table)),
        model=given.get("model", ""),
        version=given.get("version", ""),
        base=None if base is None else int(base),
    )


def _metadata(schema: Any) -> dict[str, str]:
    given = {}
    for key, value in (schema.metadata or {}).items():
        name = key.decode("utf-8", "replace")
        if not name.startswith(_PREFIX):
            continue  # pandas' own, for one
        if name.removeprefix(_PREFIX) not in _METADATA:
            raise invalid(f"unknown metadata {shown(name)}; known: {', '.join(_METADATA)}")
        given[name.removeprefix(_PREFIX)] = value.decode("utf-8", "replace")
    return given


def _tables(arrow: Any, table: Any) -> Iterator[TableRows]:
    if not len(table):
        return
    names, codes = _codes(arrow, table.column("table").chunk(0))
    rows = table.column("row").cast(arrow.int64()).chunk(0).to_numpy(zero_copy_only=False)
    values = table.column("values").chunk(0)
    if (codes[1:] < codes[:-1]).any():  # the tables' rows are mixed
        order = np.argsort(codes, kind="stable")
        codes, rows, values = codes[order], rows[order], values.take(arrow.array(order))
    widths = _widths(arrow, values)
    flat = values.flatten().cast(arrow.float32(), safe=False).to_numpy(zero_copy_only=False)
    starts = np.flatnonzero(np.diff(codes, prepend=-1)).tolist()
    at = 0
    for start, end in itertools.pairwise([*starts, len(codes)]):
        name, width = names[codes[start]], int(widths[start])
        _check_even(name, rows[start:end], widths[start:end])
        size = (end - start) * width
        yield TableRows(name, rows[start:end], flat[at : at + size].reshape(end - start, width))
        at += size


def _codes(arrow: Any, column: Any) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Return the tables' names, each once, and the number of each row's name, in their order."""
    encoded = column if arrow.types.is_dictionary(column.type) else column.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    if None in names:  # which null_count of the column does not see
        raise invalid("column 'table' has nulls")
    # A dictionary may hold a name twice, or one that no row has.
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    of_entry = np.asarray([numbers[name] for name in names], np.int64)
    return list(numbers), of_entry[np.asarray(encoded.indices)]


def _widths(arrow: Any, values: Any) -> npt.NDArray[np.int64]:
    """Return how many values each row has."""
    if arrow.types.is_fixed_size_list(values.type):
        return np.full(len(values), values.type.list_size, np.int64)
    return np.asarray(values.value_lengths(), np.int64)


def _check_even(name: str, rows: npt.NDArray[np.int64], widths: npt.NDArray[np.int64]) -> None:
    """Refuse rows of one table that differ in width. Raises ServingError."""
    differs = widths != widths[0]
    if differs.any():
        at = int(np.argmax(differs))
        raise invalid(
            f"table {name!r}: row {rows[at]} has {widths[at]} values, row {rows[0]} has {widths[0]}"
        )
