"""What replicas catch up with, and how they do: without a cluster."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.fake import FakeBackend
from backends.ray_pool.changes import Changes
from backends.ray_pool.refused import Refused
from backends.ray_pool.updated import UpdatedTables
from scheduler.backend import TableRows
from scheduler.errors import Code, ServingError
from tests.fixtures.updatable import ROWS, TABLES, UpdatableFake, delta

# Two names may be one table: "also a" is "a".
_NAMES = ("a", "also a", "b")
_DRAWN = st.lists(
    st.tuples(st.sampled_from(_NAMES), st.sets(st.integers(0, ROWS - 1), min_size=1)), max_size=30
)


def write(tables: dict[str, np.ndarray], each: TableRows) -> None:
    tables[each.table.removeprefix("also ")][each.rows] = each.values


@given(drawn=_DRAWN, ask_each_time=st.booleans())
def test_what_is_in_force_makes_of_loaded_tables_what_all_changes_made(
    drawn: list[tuple[str, set[int]]], ask_each_time: bool
) -> None:
    changes = Changes()
    made = {name: np.zeros((ROWS, 2), np.float32) for name in ("a", "b")}
    for number, (name, rows) in enumerate(drawn, start=1):
        values = np.full((len(rows), 2), number, np.float32)
        change = TableRows(name, np.asarray(list(rows), np.int64), values)
        write(made, change)
        changes.add(changes.number(), [change])
        if ask_each_time:
            changes.in_force()
    caught_up = {name: np.zeros((ROWS, 2), np.float32) for name in made}
    kept = changes.in_force()
    for change in kept:
        write(caught_up, change)
    assert all(np.array_equal(made[name], caught_up[name]) for name in made)
    assert sum(len(change.rows) for change in kept) <= len(_NAMES) * ROWS
    assert changes.state == len(drawn)


def test_rows_that_were_replaced_again_are_dropped_though_nobody_asks() -> None:
    changes = Changes()
    rows, values = np.arange(1000), np.zeros((1000, 1), np.float32)
    for _ in range(100):
        changes.add(changes.number(), [TableRows("a", rows, values)])
        assert sum(len(each.rows) for each in changes._log) <= 6096


def test_after_a_rollback_nothing_is_in_force_and_no_number_comes_again() -> None:
    changes = Changes()
    changes.add(changes.number(), delta().tables)
    changes.clear(changes.number())
    assert (changes.in_force(), changes.state) == ((), 2)
    assert changes.number() == 3


def test_what_was_prepared_is_written_once_it_is_wanted_and_only_as_what_it_was() -> None:
    backend = UpdatableFake()
    tables = UpdatedTables("fake", backend)
    assert tables.prepare(1, delta(value=5.0).tables) is None
    assert not backend.stored[TABLES[0]].any()
    early = tables.commit(2)
    assert isinstance(early, Refused)
    assert early.code is Code.UNAVAILABLE
    assert tables.state == 0
    assert tables.prepare(3, delta(value=5.0).tables) is None
    assert tables.commit(3) is None
    assert backend.stored[TABLES[0]].max() == 5.0
    assert tables.state == 3
    assert tables.roll_back(4) == 2
    assert tables.state == 4


def test_who_catches_up_forgets_what_it_had_and_has_what_others_have() -> None:
    backend = UpdatableFake()
    tables = UpdatedTables("fake", backend)
    tables.prepare(1, delta(rows=(8,)).tables)
    tables.commit(1)
    tables.catch_up(7, [*delta(rows=(1, 2)).tables, *delta(rows=(2,), value=3.0).tables])
    assert backend.stored[TABLES[0]][:, 0].tolist() == [0, 1, 3, 0, 0, 0, 0, 0, 0, 0]
    assert tables.state == 7


def test_a_write_that_a_batch_holds_up_leaves_all_as_it_was_and_one_that_breaks_is_no_state() -> (
    None
):
    backend = UpdatableFake()
    tables = UpdatedTables("fake", backend)
    backend.fault = ServingError(Code.UNAVAILABLE, "not updated: a batch computes")
    tables.prepare(1, delta().tables)
    assert isinstance(tables.commit(1), Refused)
    assert tables.state == 0
    backend.fault = ZeroDivisionError("half of it is written")
    tables.prepare(2, delta().tables)
    with pytest.raises(ZeroDivisionError):
        tables.commit(2)
    assert tables.state not in {0, 2}


def test_a_backend_without_updates_says_so() -> None:
    tables = UpdatedTables("fake", None)
    refusals = tables.specs(), tables.prepare(1, ()), tables.roll_back(1)
    for refused in refusals:
        assert isinstance(refused, Refused)
        assert refused.code is Code.UNSUPPORTED
        assert "takes no embedding updates" in str(refused.error())


def _loaded(backend: FakeBackend) -> FakeBackend:
    backend.load()
    return backend
