"""What the footer of a Parquet file says of its columns' sizes.

pyarrow would say it, too, but where a column's head contradicts itself its C++ ends the process
(an exception that nothing there catches). The few fields are read here, from the Thrift that they
are in (Parquet's parquet.thrift, Thrift's compact protocol).
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from scheduler.errors import ServingError, invalid

# Of a gigabyte in groups of a thousand rows it has half as many.
MOST_BYTES = 8 << 20
_TAIL = struct.Struct("<I4s")  # the footer's length, and what every file ends with
_MAGIC = b"PAR1"
# Fields by their numbers: of FileMetaData, RowGroup, ColumnChunk, ColumnMetaData.
_ROW_GROUPS, _COLUMNS, _META_DATA = 4, 1, 3
_PATH, _NUM_VALUES, _UNCOMPRESSED = 3, 5, 6
# Types of the protocol: these have a length that is known, or is in the first byte.
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY = 1, 2, 3, 7, 8
_VARINTS = (4, 5, 6)
_LISTS = (9, 10)
_MAP, _STRUCT, _UUID = 11, 12, 13
_FIXED = {_BYTE: 1, _DOUBLE: 8, _UUID: 16}
_MOST_DEEP = 32


@dataclass(frozen=True, slots=True)
class Column:
    """One column of one group of rows; ``values`` counts those of all its lists."""

    path: str
    values: int
    uncompressed_bytes: int


def columns(body: bytes) -> Iterator[Column]:
    """Yield every column of every group of rows. Raises ServingError (INVALID_REQUEST)."""
    if len(body) < _TAIL.size or body[-len(_MAGIC) :] != _MAGIC:
        raise _damaged("it has no footer")
    length, _ = _TAIL.unpack_from(body, len(body) - _TAIL.size)
    start = len(body) - _TAIL.size - length
    if start < len(_MAGIC) or length > MOST_BYTES:
        raise _damaged(f"its footer has {length} bytes, at most {MOST_BYTES} are read")
    reader = _Reader(body[start : len(body) - _TAIL.size])
    try:
        yield from _file(reader)
    except (IndexError, ValueError) as error:
        raise _damaged("its footer is damaged") from error


def _damaged(why: str) -> ServingError:
    return invalid(f"the delta cannot be read: {why}")


class _Reader:
    """Reads values of the compact protocol. Raises IndexError behind the end, or ValueError."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield number and type of each field of a struct; whoever asks reads or skips it."""
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self.integer()
            yield number, head & 15

    def items(self, kind: int) -> Iterator[int]:
        """Yield the type of each item of a list; whoever asks reads or skips it."""
        if kind not in _LISTS:
            raise ValueError(kind)
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self._varint()
        for _ in range(count):
            yield head & 15

    def integer(self) -> int:
        """Return a whole number."""
        number = self._varint()
        return number >> 1 ^ -(number & 1)

    def binary(self) -> bytes:
        """Return bytes."""
        length = self._varint()
        start = self._at
        self._forward(length)
        return self._data[start : self._at]

    def skip(self, kind: int, depth: int = 0) -> None:
        """Pass over a value that is a field's."""
        if kind in _FIXED:
            self._forward(_FIXED[kind])
        elif kind in _VARINTS:
            self._varint()
        elif kind == _BINARY:
            self._forward(self._varint())
        elif kind not in (_TRUE, _FALSE):  # whose value is their type
            self._skip_nested(kind, depth + 1)

    def _skip_nested(self, kind: int, depth: int) -> None:
        if depth > _MOST_DEEP or kind not in (*_LISTS, _MAP, _STRUCT):
            raise ValueError(kind)
        if kind == _MAP:
            self._skip_map(depth)
        elif kind == _STRUCT:
            for _, field in self.fields():
                self.skip(field, depth)
        else:
            for item in self.items(kind):
                self._skip_item(item, depth)

    def _skip_item(self, kind: int, depth: int) -> None:
        self.skip(_BYTE if kind in (_TRUE, _FALSE) else kind, depth)

    def _skip_map(self, depth: int) -> None:
        count = self._varint()
        kinds = self._byte() if count else 0
        for _ in range(count):
            self._skip_item(kinds >> 4, depth)
            self._skip_item(kinds & 15, depth)

    def _byte(self) -> int:
        byte = self._data[self._at]
        self._at += 1
        return byte

    def _varint(self) -> int:
        number = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            number |= (byte & 127) << shift
            if byte < 128:
                return number
        raise ValueError(number)

    def _forward(self, length: int) -> None:
        if length > len(self._data) - self._at:
            raise IndexError
        self._at += length


def _file(reader: _Reader) -> Iterator[Column]:
    for number, kind in reader.fields():
        if number != _ROW_GROUPS:
            reader.skip(kind)
            continue
        for _ in reader.items(kind):
            yield from _group(reader)


def _group(reader: _Reader) -> Iterator[Column]:
    for number, kind in reader.fields():
        if number != _COLUMNS:
            reader.skip(kind)
            continue
        for _ in reader.items(kind):
            yield from _chunk(reader)


def _chunk(reader: _Reader) -> Iterator[Column]:
    for number, kind in reader.fields():
        if number == _META_DATA:
            yield _column(reader)
        else:
            reader.skip(kind)


def _column(reader: _Reader) -> Column:
    path: list[str] = []
    counts = {_NUM_VALUES: 0, _UNCOMPRESSED: 0}
    for number, kind in reader.fields():
        if number == _PATH:
            path = [reader.binary().decode("utf-8", "replace") for _ in reader.items(kind)]
        elif number in counts:
            counts[number] = max(0, reader.integer())
        else:
            reader.skip(kind)
    return Column(".".join(path), counts[_NUM_VALUES], counts[_UNCOMPRESSED])
