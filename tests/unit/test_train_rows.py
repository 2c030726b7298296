"""Labelled rows: taken in any order, and thinned."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from backends.torch_dlrm.train.rows import Rows

FEATURES = 3


def rows_of(lengths: list[list[int]]) -> Rows:
    """Return rows with bags of these lengths, a list a row; every id occurs once."""
    table = np.array(lengths, np.int64).reshape(-1, FEATURES).T
    count = table.shape[1]
    return Rows(
        np.arange(count, dtype=np.float32)[:, None],
        table,
        np.arange(table.sum()),
        np.arange(count, dtype=np.float32),
    )


def bags(rows: Rows) -> list[list[list[int]]]:
    """Return every row's bags."""
    flat = np.split(rows.values, np.cumsum(rows.lengths.ravel())[:-1])
    return [[flat[f * len(rows) + r].tolist() for f in range(FEATURES)] for r in range(len(rows))]


LENGTHS = st.lists(
    st.lists(st.integers(0, 4), min_size=FEATURES, max_size=FEATURES), min_size=1, max_size=8
)


@given(LENGTHS, st.data())
def test_rows_are_taken_with_their_own_bags(lengths: list[list[int]], data: st.DataObject) -> None:
    rows = rows_of(lengths)
    index = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=10))
    taken = rows.take(np.array(index, np.int64))
    whole = bags(rows)
    assert (bags(taken) if index else []) == [whole[at] for at in index]
    assert taken.labels.tolist() == taken.dense.ravel().tolist() == index


@given(LENGTHS, st.integers(0, 2**32 - 1))
def test_only_the_features_named_are_thinned(lengths: list[list[int]], seed: int) -> None:
    rows = rows_of(lengths)
    thinned = rows.thinned({0: 1.0, 1: 0.5}, np.random.default_rng(seed))
    for (first, second, third), whole in zip(bags(thinned), bags(rows), strict=True):
        assert first == []
        assert set(second) <= set(whole[1])
        assert third == whole[2]
