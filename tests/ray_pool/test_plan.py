"""How tables are shared out, and batches with them: without a cluster."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.jagged import Ids
from backends.ray_pool.sharded.join import join, place
from backends.ray_pool.sharded.plan import Piece, Plan, TableSize, make_plan
from backends.ray_pool.sharded.split import PieceIds, split

KINDS = ("auto", "table_wise", "row_wise")


def size_of(plan: Plan, tables: list[TableSize]) -> list[int]:
    return [sum(piece.rows * tables[piece.table].row_bytes for piece in part) for part in plan]


def test_the_largest_tables_go_first_each_to_the_emptiest_part() -> None:
    tables = [TableSize(rows, 1) for rows in (3, 7, 5, 4, 6)]
    plan = make_plan(tables, 2, "table_wise")
    assert [[piece.table for piece in part] for part in plan] == [[0, 1, 3], [2, 4]]
    assert size_of(plan, tables) == [14, 11]


def test_a_table_larger_than_a_fair_share_is_cut_by_rows_and_others_stay_whole() -> None:
    tables = [TableSize(1000, 68), TableSize(10, 68), TableSize(10, 68)]
    plan = make_plan(tables, 2)
    assert plan == (
        (Piece(0, 0, 500), Piece(1, 0, 10)),
        (Piece(0, 500, 500), Piece(2, 0, 10)),
    )


def test_by_rows_every_table_is_everywhere_unless_it_has_too_few() -> None:
    plan = make_plan([TableSize(9, 4), TableSize(2, 4)], 3, "row_wise")
    assert [[piece.rows for piece in part] for part in plan] == [[3], [3, 1], [3, 1]]


@pytest.mark.parametrize("kind", KINDS)
@given(rows=st.lists(st.integers(1, 10**6), min_size=1, max_size=30), parts=st.integers(1, 9))
def test_every_row_is_in_exactly_one_place(kind: str, rows: list[int], parts: int) -> None:
    plan = make_plan([TableSize(count, 68) for count in rows], parts, kind)
    assert len(plan) == parts
    for table, count in enumerate(rows):
        pieces = [piece for part in plan for piece in part if piece.table == table]
        ends = [(piece.first, piece.first + piece.rows) for piece in pieces]
        assert sorted(ends)[0][0] == 0
        assert sum(piece.rows for piece in pieces) == count
        assert all(before[1] == after[0] for before, after in pairwise(sorted(ends)))


def pooled(part: tuple[Piece, ...], wanted: PieceIds, values: list[np.ndarray]) -> np.ndarray:
    """Return the sums of one part's bags, plainly."""
    pieces, rows = wanted.lengths.shape
    out = np.zeros((rows, pieces, values[0].shape[1]), np.float32)
    bags = np.split(wanted.ids, np.cumsum(wanted.lengths.reshape(-1))[:-1])
    for number, piece in enumerate(part):
        own = values[piece.table][piece.first : piece.first + piece.rows]
        for row in range(rows):
            out[row, number] = own[bags[number * rows + row]].sum(axis=0)
    return out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_bags_that_were_shared_out_add_up_to_those_of_the_whole(kind: str, dtype: type) -> None:
    random = np.random.default_rng(3)
    table_rows, rows = [40, 3, 7], 5
    # Whole numbers: their sums are the same in any order.
    values = [random.integers(-9, 9, (count, 4)).astype(np.float32) for count in table_rows]
    lengths = random.integers(0, 4, (3, rows)).astype(np.int32)
    ids: Ids = np.concatenate(
        [random.integers(0, table_rows[at], lengths[at].sum()) for at in range(3)]
    ).astype(dtype)
    plan = make_plan([TableSize(count, 16) for count in table_rows], 3, kind)
    parts = split(plan, table_rows, lengths, ids)
    assert sum(part.ids.size for part in parts) == ids.size
    found = np.full((rows, 3, 4), np.nan, np.float32)
    sums = [pooled(one, ids, values) for one, ids in zip(plan, parts, strict=True)]
    placement = place(plan)
    join(placement, [np.array_split(each, 2) for each in sums], found)
    whole = tuple(Piece(at, 0, count) for at, count in enumerate(table_rows))
    expected = pooled(whole, PieceIds(lengths, ids), values)
    assert np.array_equal(found[:, placement.slots], expected)
