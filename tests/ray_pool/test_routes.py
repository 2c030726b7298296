"""Rows of tables that are shared out find their piece; two names may be one table."""

import numpy as np

from backends.dlrm.forward.model import Table
from backends.ray_pool.sharded.plan import Piece, Plan
from backends.ray_pool.sharded.routes import Names, shared_out
from scheduler.backend import TableRows


def rows_of(name: str, *rows: int) -> TableRows:
    """New rows, each of its own number."""
    return TableRows(name, np.array(rows), np.array(rows, np.float32)[:, None])


def names() -> Names:
    """Two tables of 10 and 4 rows, and a second name for the first."""
    storage = np.zeros((14, 8), np.uint8)
    first, second = storage[:10], storage[10:]
    return Names.of(
        [Table("a", "int8", 4, first), Table("b", "int8", 4, second), Table("c", "int8", 4, first)]
    )


CUT: Plan = (
    (Piece(0, 0, 5), Piece(1, 0, 4), Piece(2, 0, 5)),
    (Piece(0, 5, 5), Piece(2, 5, 5)),
)


def told(parts: list[list[TableRows]]) -> list[list[tuple[str, list[int], list[float]]]]:
    return [
        [(each.table, each.rows.tolist(), each.values[:, 0].tolist()) for each in part]
        for part in parts
    ]


def test_rows_go_to_the_piece_that_has_them_counted_from_its_first() -> None:
    found = shared_out(names(), CUT, [rows_of("a", 7, 0, 4, 5), rows_of("b", 3)])
    assert told(found) == [
        [("a, of which row 0 is row 0", [0, 4], [0.0, 4.0]), ("b", [3], [3.0])],
        [("a, of which row 0 is row 5", [2, 0], [7.0, 5.0])],
    ]


def test_a_part_that_has_none_of_the_rows_gets_nothing() -> None:
    assert told(shared_out(names(), CUT, [rows_of("a", 1)]))[1] == []


def test_either_name_of_a_table_reaches_its_memory_once_in_every_part_that_has_it() -> None:
    plan: Plan = ((Piece(0, 0, 10),), (Piece(1, 0, 4), Piece(2, 0, 10)))
    for name in ("a", "c"):
        found = shared_out(names(), plan, [rows_of(name, 9)])
        assert told(found) == [[("a", [9], [9.0])], [("c", [9], [9.0])]]
    assert told(shared_out(names(), CUT, [rows_of("c", 9)])) == [
        [], [("a, of which row 0 is row 5", [4], [9.0])]
    ]  # fmt: skip


def test_of_pieces_that_begin_together_the_longest_is_written() -> None:
    plan: Plan = ((Piece(0, 0, 5), Piece(2, 0, 10)),)
    assert told(shared_out(names(), plan, [rows_of("a", 2, 8)])) == [[("c", [2, 8], [2.0, 8.0])]]
