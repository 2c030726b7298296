"""Which rows of which piece a table's rows are; two names may be one table, as in the model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from backends.dlrm.forward.model import Table
from backends.ray_pool.sharded.plan import Piece, Plan
from scheduler.backend import TableRows


@dataclass(frozen=True, slots=True)
class Names:
    """The tables of a model: their names, their rows, and ``same``, the first that each one is."""

    features: tuple[str, ...]
    rows: tuple[int, ...]
    same: tuple[int, ...]

    @staticmethod
    def of(tables: Sequence[Table]) -> "Names":
        """Return the names of ``tables``, of which those with the same memory are one."""
        places: dict[int, int] = {}
        return Names(
            tuple(table.feature for table in tables),
            tuple(len(table.data) for table in tables),
            tuple(
                places.setdefault(table.data.ctypes.data, number)
                for number, table in enumerate(tables)
            ),
        )

    def piece(self, piece: Piece) -> str:
        """Return what ``piece`` is called where it lies, and in what is said of its rows."""
        feature = self.features[piece.table]
        whole = piece.rows == self.rows[piece.table]
        return feature if whole else f"{feature}, of which row 0 is row {piece.first}"

    def written(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Return those of one part's ``pieces`` that have to be written: each memory once."""
        found: dict[tuple[int, int], Piece] = {}
        for piece in pieces:
            known = found.setdefault((self.same[piece.table], piece.first), piece)
            if known.rows < piece.rows:
                found[self.same[piece.table], piece.first] = piece
        return list(found.values())


def shared_out(names: Names, plan: Plan, tables: Sequence[TableRows]) -> list[list[TableRows]]:
    """Return what each part of ``plan`` gets of ``tables``: rows of its pieces."""
    same = dict(zip(names.features, names.same, strict=True))
    by_table = {same[each.table]: each for each in tables}
    return [list(_of_part(names, pieces, by_table)) for pieces in plan]


def _of_part(
    names: Names, pieces: Sequence[Piece], by_table: dict[int, TableRows]
) -> Iterator[TableRows]:
    for piece in names.written(pieces):
        new = by_table.get(names.same[piece.table])
        if new is None:
            continue
        rows = new.rows - piece.first
        here = (rows >= 0) & (rows < piece.rows)
        if here.all():
            yield TableRows(names.piece(piece), rows, new.values)
        elif here.any():
            yield TableRows(names.piece(piece), rows[here], new.values[here])
