"""Plans that TorchRec's planner makes, for shards on CPUs: without a cluster."""

from itertools import pairwise

import pytest

from backends.ray_pool.sharded.plan import Plan, TableSize
from backends.torch_dlrm.export.quiet import quiet
from scheduler.errors import LoadError

# Importing it takes seconds, and some of what it needs is for export only.
pytestmark = pytest.mark.slow
TABLES = [TableSize(rows, 68) for rows in (100_000, 5_000, 100, 3, 30_000, 20, 10_000, 1)]
ROOM = 10**9


def plan(kind: str, part_bytes: int = ROOM) -> Plan:
    with quiet():
        from backends.ray_pool.sharded.planner import plan_by_torchrec  # noqa: PLC0415

    return plan_by_torchrec(TABLES, 3, kind, 256, part_bytes)


@pytest.mark.parametrize("kind", ["auto", "table_wise", "row_wise"])
def test_every_row_is_in_exactly_one_place(kind: str) -> None:
    found = plan(kind)
    assert len(found) == 3
    for number, table in enumerate(TABLES):
        pieces = sorted(
            (piece.first, piece.first + piece.rows)
            for part in found
            for piece in part
            if piece.table == number
        )
        assert pieces[0][0] == 0
        assert pieces[-1][1] == table.rows
        assert all(before[1] == after[0] for before, after in pairwise(pieces))
        assert kind != "table_wise" or len(pieces) == 1
        assert kind != "row_wise" or len(pieces) == min(3, table.rows)


def test_tables_that_fit_nowhere_whole_are_cut_or_refused() -> None:
    largest = TABLES[0].size_bytes
    cut = plan("auto", largest - 1)
    assert len([piece for part in cut for piece in part if piece.table == 0]) == 3
    with pytest.raises(LoadError, match="--plan-by planner: TorchRec finds no plan"):
        plan("table_wise", largest - 1)
