"""Deltas in every format: what was written comes back, and anything else is refused in words."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.backend import TableRows
from scheduler.deltas import Delta
from scheduler.errors import Code, ServingError
from tests.fixtures.delta_files import FORMATS, columns, delta_bytes, written
from transports.codecs import delta_arrow, delta_json


def decode(form: str, body: bytes) -> Delta:
    return delta_json.decode(body) if form == "json" else delta_arrow.decode(body)


def some(seed: int, names: tuple[str, ...], dim: int) -> list[TableRows]:
    random = np.random.default_rng(seed)
    return [
        TableRows(
            name,
            random.integers(-5, 2**40, count),
            random.normal(size=(count, dim)).astype(np.float32),
        )
        for name, count in zip(names, random.integers(1, 40, len(names)).tolist(), strict=True)
    ]


@pytest.mark.parametrize("form", FORMATS)
@given(
    seed=st.integers(0, 2**32),
    names=st.lists(st.text(min_size=1, max_size=9), min_size=1, max_size=4, unique=True),
    dim=st.integers(1, 9),
    base=st.none() | st.integers(0, 2**40),
)
@settings(max_examples=25)
def test_every_format_brings_the_rows_and_what_is_said_of_them(
    form: str, seed: int, names: list[str], dim: int, base: int | None
) -> None:
    tables = some(seed, tuple(names), dim)
    metadata = {"id": "x", "version": "7"} | ({} if base is None else {"base": str(base)})
    got = decode(form, delta_bytes(form, tables, **metadata))
    assert (got.id, got.version, got.base, got.model) == ("x", "7", base, "")
    assert [one.table for one in got.tables] == names
    for one, expected in zip(got.tables, tables, strict=True):
        assert np.array_equal(one.rows, expected.rows)
        assert np.array_equal(one.values, expected.values)
        assert one.values.dtype == np.float32


@pytest.mark.parametrize("form", FORMATS)
def test_without_a_name_the_contents_are_the_name(form: str) -> None:
    first, second = (delta_bytes(form, some(seed, ("a",), 3)) for seed in (1, 2))
    assert decode(form, first).id == decode(form, first).id != decode(form, second).id


@pytest.mark.parametrize("form", FORMATS)
@given(cut=st.floats(0, 1, exclude_max=True))
@settings(max_examples=40)
def test_a_torn_delta_is_refused(form: str, cut: float) -> None:
    whole = delta_bytes(form, some(1, ("a", "b"), 3))
    with pytest.raises(ServingError) as caught:
        decode(form, whole[: int(cut * len(whole))])
    assert caught.value.code is Code.INVALID_REQUEST


@pytest.mark.parametrize(
    ("form", "body", "said"),
    [
        ("file", delta_bytes("file", some(1, ("a",), 3))[:-1], "the Arrow file has no end, it was"),
        ("stream", delta_bytes("stream", some(1, ("a",), 3))[:90], "the stream has no end, it was"),
        ("stream", b"", "it has no bytes"),
        ("stream", b'{"tables": {}}', "no Arrow IPC file or stream and no Parquet, and was not"),
    ],
)
def test_the_refusal_says_whether_it_was_cut_off_or_is_no_delta_at_all(
    form: str, body: bytes, said: str
) -> None:
    with pytest.raises(ServingError, match=said):
        decode(form, body)


def test_a_stream_that_was_cut_between_two_batches_is_refused() -> None:
    whole = delta_bytes("stream", some(1, ("a", "b"), 3))
    with pytest.raises(ServingError, match="the stream has no end"):
        decode("stream", whole[:-8])


@pytest.mark.parametrize("form", FORMATS)
@given(at=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255), junk=st.binary(max_size=20))
@settings(max_examples=80)
def test_damaged_bytes_are_a_delta_or_a_refusal_and_nothing_else(
    form: str, at: float, byte: int, junk: bytes
) -> None:
    body = bytearray(delta_bytes(form, some(1, ("a", "b"), 3)))
    place = int(at * len(body))
    body[place : place + 1] = bytes([byte]) + junk
    code = None
    try:
        decode(form, bytes(body))
    except ServingError as error:
        code = error.code
    assert code in {None, Code.INVALID_REQUEST, Code.PAYLOAD_TOO_LARGE}


@given(at=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255))
@settings(max_examples=80)
def test_damaged_packed_bytes_are_a_delta_or_a_refusal_and_nothing_else(
    at: float, byte: int
) -> None:
    body = bytearray(written(columns(some(1, ("a", "b"), 3)), "file", "lz4"))
    body[int(at * len(body))] = byte
    code = None
    try:
        decode("file", bytes(body))
    except ServingError as error:
        code = error.code
    assert code in {None, Code.INVALID_REQUEST, Code.PAYLOAD_TOO_LARGE}


@pytest.mark.parametrize("form", ["stream", "file"])
@pytest.mark.parametrize("packing", ["lz4", "zstd"])
def test_packed_record_batches_are_read(form: str, packing: str) -> None:
    (table,) = some(1, ("a",), 300)
    table = TableRows("a", table.rows, np.zeros_like(table.values))
    (got,) = decode(form, written(columns([table]), form, packing)).tables
    assert np.array_equal(got.values, table.values)


@pytest.mark.parametrize("form", ["stream", "file"])
@pytest.mark.parametrize("packing", ["lz4", "zstd"])
def test_what_says_that_it_is_huge_unpacked_is_refused_before_it_is_unpacked(
    form: str, packing: str
) -> None:
    rows = TableRows("a", np.arange(7), np.zeros((7, 5000), np.float32))
    body = written(columns([rows]), form, packing)
    size = rows.values.nbytes.to_bytes(8, "little")
    assert body.count(size) == 1
    with pytest.raises(ServingError, match="unpacked") as caught:
        decode(form, body.replace(size, (1 << 40).to_bytes(8, "little")))
    assert caught.value.code is Code.PAYLOAD_TOO_LARGE


def test_a_parquet_file_of_one_value_many_times_is_refused_before_it_is_unpacked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = TableRows("a", np.arange(1000), np.zeros((1000, 1000), np.float32))
    body = delta_bytes("parquet", [rows])
    assert len(body) < 20_000
    assert decode("parquet", body).rows == 1000
    monkeypatch.setattr(delta_arrow, "MOST_BYTES", 4_000_000)
    before = pa.total_allocated_bytes()
    with pytest.raises(ServingError, match="more than 4000000 bytes, unpacked"):
        decode("parquet", body)
    assert pa.total_allocated_bytes() - before < 100_000


def test_a_name_is_unpacked_once_however_many_rows_of_a_parquet_file_have_it() -> None:
    name = "x" * 1_000_000
    table = columns([TableRows("a", np.arange(5000), np.zeros((5000, 1), np.float32))])
    names = pa.DictionaryArray.from_arrays(pa.array([0] * 5000), [name])
    body = written(table.set_column(0, "table", names), "parquet")
    assert [one.table for one in decode("parquet", body).tables] == [name]


def test_a_dictionary_of_names_that_holds_a_null_is_refused() -> None:
    names = pa.DictionaryArray.from_arrays(pa.array([1]), pa.array(["a", None]))
    table = columns(some(1, ("a",), 2)).slice(0, 1).set_column(0, "table", names)
    with pytest.raises(ServingError, match="column 'table' has nulls"):
        decode("stream", written(table, "stream"))


def test_rows_without_a_value_are_rows_of_no_width() -> None:
    (table,) = decode("json", b'{"tables": {"a": {"rows": [1, 2], "values": [[], []]}}}').tables
    assert table.values.shape == (2, 0)


def renamed(table: pa.Table) -> pa.Table:
    return table.rename_columns(["table", "id", "values"])


def floats_for_rows(table: pa.Table) -> pa.Table:
    return table.set_column(1, "row", table.column("row").cast(pa.float64(), safe=False))


def flat_values(table: pa.Table) -> pa.Table:
    return table.set_column(2, "values", pa.array(np.zeros(len(table), np.float32)))


def whole_values(table: pa.Table) -> pa.Table:
    return table.set_column(2, "values", pa.array([[1, 2]] * len(table)))


def a_null(table: pa.Table) -> pa.Table:
    return table.set_column(1, "row", pa.array([None, *range(len(table) - 1)], pa.int64()))


def ragged(table: pa.Table) -> pa.Table:
    lists = [[0.0, 0.0], [0.0], *[[0.0, 0.0]] * (len(table) - 2)]
    return table.set_column(2, "values", pa.array(lists, pa.list_(pa.float32())))


def foreign_metadata(table: pa.Table) -> pa.Table:
    return table.replace_schema_metadata({"narsil.basis": "1"})


def worded_base(table: pa.Table) -> pa.Table:
    return table.replace_schema_metadata({"narsil.base": "first"})


@pytest.mark.parametrize("form", ["stream", "file", "parquet"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (renamed, "expected table, row, values"),
        (floats_for_rows, "column 'row' is double, expected whole numbers"),
        (flat_values, "column 'values' is float, expected lists of floats"),
        (whole_values, "expected lists of floats"),
        (a_null, "column 'row' has nulls"),
        (ragged, "has 1 values, row"),
        (foreign_metadata, "unknown metadata 'narsil.basis'"),
        (worded_base, "narsil.base is 'first', expected a whole number"),
    ],
)
def test_columns_of_another_kind_are_refused(
    form: str, change: Callable[[pa.Table], pa.Table], said: str
) -> None:
    with pytest.raises(ServingError) as caught:
        decode(form, written(change(columns(some(1, ("a",), 2))), form))
    assert said in caught.value.detail


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "body is empty"),
        (b"[]", "expected an object"),
        (b'{"tables": {}, "basis": 1}', 'unknown field "basis"'),
        (b"{}", "tables is null, expected an object of tables"),
        (b'{"tables": {"a": []}}', "expected an object of exactly rows and values"),
        (b'{"tables": {"a": {"rows": [1], "values": []}}}', "has 1 rows, but values for 0"),
        (b'{"tables": {"a": {"rows": [1], "values": [2]}}}', "values[0] is 2, expected a list"),
        (b'{"tables": {"a": {"rows": [1.5], "values": [[2]]}}}', "rows[0] is 1.5"),
        (b'{"tables": {"a": {"rows": [1], "values": [["x"]]}}}', 'values[0][0] is "x"'),
        (b'{"tables": {"a": {"rows": [1], "values": [[1e40]]}}}', "float32's limit"),
        (b'{"tables": {"a": {"rows": [1, 2], "values": [[1], [1, 2]]}}}', "the first has 1"),
        (b'{"tables": {"a": {"rows": [NaN], "values": [[1]]}}}', "is not JSON"),
        (b'{"tables": {}, "base": "1"}', 'base is "1", expected a whole number'),
        (b'{"tables": {}, "id": 1}', "id is 1, expected a text"),
    ],
)
def test_json_of_another_kind_is_refused(body: bytes, said: str) -> None:
    with pytest.raises(ServingError) as caught:
        decode("json", body)
    assert said in caught.value.detail
