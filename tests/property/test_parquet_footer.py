"""Footers of Parquet files: read as pyarrow reads them, and no byte of them ends the process."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.backend import TableRows
from scheduler.errors import Code, ServingError
from tests.fixtures.delta_files import delta_bytes
from transports.codecs import delta_arrow
from transports.codecs.parquet_footer import columns

ROWS = TableRows("a", np.arange(3), np.ones((3, 2), np.float32))
DEEP = b"\x1c" * 100  # structs within structs
FLOOD = b"\x19\xfc\xff\xff\xff\xff\x07"  # a list of two billion structs


def file_of(footer: bytes) -> bytes:
    """Return a file with nothing but ``footer``."""
    return b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"


@pytest.mark.parametrize("version", ["1.0", "2.6"])
@pytest.mark.parametrize("group_rows", [7, 1000])
def test_sizes_are_those_that_pyarrow_reads(version: str, group_rows: int) -> None:
    values = pa.array([[1.0] * (row % 4) for row in range(50)])
    table = pa.table({"table": ["é"] * 50, "row": range(50), "values": values})
    out = io.BytesIO()
    pq.write_table(table, out, version=version, row_group_size=group_rows)
    metadata = pq.read_metadata(io.BytesIO(out.getvalue()))
    groups = (metadata.row_group(group) for group in range(metadata.num_row_groups))
    assert [(one.path, one.values, one.uncompressed_bytes) for one in columns(out.getvalue())] == [
        (column.path_in_schema, column.num_values, column.total_uncompressed_size)
        for group in groups
        for column in map(group.column, range(metadata.num_columns))
    ]


def test_no_damaged_byte_of_a_footer_ends_the_process() -> None:
    body = delta_bytes("parquet", [ROWS])
    length = int.from_bytes(body[-8:-4], "little")
    for place in range(len(body) - 8 - length, len(body)):
        damaged = bytearray(body)
        damaged[place] ^= 0x10
        code = None
        try:
            delta_arrow.decode(bytes(damaged))
        except ServingError as error:
            code = error.code
        assert code in (None, Code.INVALID_REQUEST, Code.PAYLOAD_TOO_LARGE)


@given(footer=st.binary(max_size=60))
def test_any_footer_is_columns_or_refused(footer: bytes) -> None:
    found, code = [], None
    try:
        found = list(columns(file_of(footer)))
    except ServingError as error:
        code = error.code
    assert code in (None, Code.INVALID_REQUEST)
    assert all(one.values >= 0 and one.uncompressed_bytes >= 0 for one in found)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"PAR1", b"PAR1PAR1", file_of(DEEP), file_of(FLOOD), file_of(b"\x4c\x19\xff"),
        b"PAR1" + (1 << 30).to_bytes(4, "little") + b"PAR1", file_of(bytes((8 << 20) + 1)),
    ],
)  # fmt: skip
def test_what_is_no_footer_is_refused(body: bytes) -> None:
    with pytest.raises(ServingError, match=r"the delta cannot be read: its? "):
        list(columns(body))


def test_a_parquet_file_of_other_columns_is_refused_by_their_names() -> None:
    out = io.BytesIO()
    pq.write_table(pa.table({"x": [1]}), out)
    with pytest.raises(ServingError, match=r"the delta's columns are .*x.*; expected table"):
        delta_arrow.decode(out.getvalue())
