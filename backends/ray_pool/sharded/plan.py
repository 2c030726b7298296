"""Which actor has which rows of which table: by size, the largest first, the emptiest takes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from backends.ray_pool.options import AUTO, ROW_WISE, TABLE_WISE


@dataclass(frozen=True, slots=True)
class TableSize:
    """One table: its rows, and the bytes of each as it is stored."""

    rows: int
    row_bytes: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole table."""
        return self.rows * self.row_bytes


@dataclass(frozen=True, slots=True)
class Piece:
    """``rows`` rows of the table at position ``table``, from ``first`` on."""

    table: int
    first: int
    rows: int


# The pieces of each part, in the order of their tables.
Plan = tuple[tuple[Piece, ...], ...]


def make_plan(tables: Sequence[TableSize], parts: int, kind: str = AUTO) -> Plan:
    """Share ``tables`` out to ``parts``; a table is whole or, evenly, in as many pieces.

    ``auto`` cuts those that are larger than a part's fair share. A part may be left with nothing.
    """
    fair_bytes = sum(table.size_bytes for table in tables) / parts
    loads = [0] * parts
    found: list[list[Piece]] = [[] for _ in range(parts)]
    whole: list[int] = []
    for number, table in enumerate(tables):
        large = kind == AUTO and table.size_bytes > fair_bytes
        if kind == TABLE_WISE or parts == 1 or not (large or kind == ROW_WISE):
            whole.append(number)
            continue
        for part, piece in enumerate(_cut(number, table.rows, parts)):
            if piece.rows:
                found[part].append(piece)
                loads[part] += piece.rows * table.row_bytes
    for number in sorted(whole, key=lambda each: -tables[each].size_bytes):
        part = loads.index(min(loads))
        found[part].append(Piece(number, 0, tables[number].rows))
        loads[part] += tables[number].size_bytes
    return tuple(tuple(sorted(pieces, key=lambda piece: piece.table)) for pieces in found)


def _cut(number: int, rows: int, parts: int) -> list[Piece]:
    ends = [rows * part // parts for part in range(parts + 1)]
    return [Piece(number, first, last - first) for first, last in pairwise(ends)]
