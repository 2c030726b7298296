"""How large a delta in Arrow IPC or Parquet says it is unpacked, before a byte of it is unpacked.

A hundred kilobytes may hold gigabytes: Arrow makes all of a record batch, Parquet all of a step of
rows, before anyone can count what came out. pyarrow does not show an IPC buffer's unpacked size, so
the few fields of its flatbuffers that lead there are read here (Arrow's format/Message.fbs).
"""

import struct
from collections.abc import Iterator
from typing import Any

from scheduler.errors import Code, ServingError, invalid
from transports.codecs.parquet_footer import columns

# Fields by their numbers: of Message; of RecordBatch; of DictionaryBatch, which holds one.
_HEADER_TYPE, _HEADER = 1, 2
_BUFFERS, _COMPRESSION = 2, 3
_DATA = 1
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_BUFFER = struct.Struct("<qq")  # offset and length within the message's body
_SIZE_BYTES = 8  # what a compressed buffer begins with: its size unpacked, -1 if it is not packed
# A row's name is a number; rows are int64 at most.
_INDEX_BYTES, _ROW_BYTES = 4, 8


def check_unpacked(total: int, most_bytes: int) -> None:
    """Refuse what is ``total`` bytes unpacked. Raises ServingError."""
    if total > most_bytes:
        raise ServingError(
            Code.PAYLOAD_TOO_LARGE, f"the delta has more than {most_bytes} bytes, unpacked"
        )


def parquet_bytes(body: bytes, schema: Any) -> int:
    """Return what the rows of a Parquet file take, its names being read as a dictionary.

    Raises ServingError.
    """
    width = int(schema.field("values").type.value_type.bit_width) // 8
    widths = {"table": _INDEX_BYTES, "row": _ROW_BYTES}
    # Runs of equal values are bytes in the file whatever their length.
    return sum(
        max(column.values * widths.get(column.path, width), column.uncompressed_bytes)
        for column in columns(body)
    )


def stream_bytes(arrow: Any, source: Any) -> int:
    """Return what the packed buffers of an IPC stream take; the others lie in the stream itself.

    Raises ServingError, or what pyarrow raises.
    """
    try:
        return sum(
            size
            for message in arrow.ipc.MessageReader.open_stream(source)
            if message.body is not None
            for size in _sizes(message.metadata.to_pybytes(), memoryview(message.body))
        )
    except (struct.error, IndexError) as error:
        raise invalid("the delta cannot be read: a message of the stream is damaged") from error


def _sizes(metadata: bytes, body: memoryview) -> Iterator[int]:
    message = struct.unpack_from("<I", metadata)[0]
    kind = _field(metadata, message, _HEADER_TYPE)
    batch = _table(metadata, message, _HEADER)
    if kind and metadata[kind] == _DICTIONARY_BATCH:
        batch = _table(metadata, batch, _DATA)
    elif not kind or metadata[kind] != _RECORD_BATCH:
        return
    if not _field(metadata, batch, _COMPRESSION):
        return
    vector = _table(metadata, batch, _BUFFERS)
    (count,) = struct.unpack_from("<I", metadata, vector)
    for number in range(count):
        offset, length = _BUFFER.unpack_from(metadata, vector + 4 + number * _BUFFER.size)
        if length >= _SIZE_BYTES:
            (size,) = struct.unpack_from("<q", body, offset)
            yield max(size, 0)


def _field(data: bytes, table: int, number: int) -> int:
    """Return where a flatbuffer table's field is, 0 if it has none."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    at = 4 + 2 * number
    if at >= struct.unpack_from("<H", data, vtable)[0]:
        return 0
    offset = struct.unpack_from("<H", data, vtable + at)[0]
    return int(table + offset) if offset else 0


def _table(data: bytes, table: int, number: int) -> int:
    """Return where the table or vector is that a field refers to. Raises IndexError."""
    at = _field(data, table, number)
    if not at:
        raise IndexError
    return int(at + struct.unpack_from("<I", data, at)[0])
