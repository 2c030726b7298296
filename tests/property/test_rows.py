"""A request cut by rows scores what its rows score: on jagged ids of every dtype and shape."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from backends.fake import FakeBackend, FakeOptions
from scheduler.execute import check
from scheduler.rows import count_ids, cut, id_inputs, ids_before
from scheduler.types import InferRequest
from scheduler.validate import validate

DTYPES = st.sampled_from(["<i2", "<i4", "<i8", ">i4"])


class Case(NamedTuple):
    """A model, a request for it that it takes, and where to cut: 0, ..., rows, ascending."""

    backend: FakeBackend
    request: InferRequest
    bounds: list[int]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    features, rows = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    bag = st.lists(st.integers(0, 99), max_size=draw(st.integers(0, 4)))
    bags = draw(st.lists(bag, min_size=features * rows, max_size=features * rows))
    lengths = np.array([len(ids) for ids in bags], draw(DTYPES)).reshape(features, rows)
    inputs = {
        # Small whole numbers: every score is exact, in whatever order it is added up.
        "float_features": np.arange(2 * rows, dtype=np.float32).reshape(rows, 2),
        "id_list_features.lengths": lengths,
        "id_list_features.values": np.array([one for ids in bags for one in ids], draw(DTYPES)),
    }
    for array in inputs.values():
        array.flags.writeable = False
    options = FakeOptions(dense_features=2, sparse_features=features, table_rows=100)
    inner = draw(st.sets(st.integers(1, rows)))
    bounds = sorted({0, rows} | inner)
    return Case(FakeBackend(options), InferRequest("fake", rows, inputs), bounds)


@given(cases())
def test_pieces_score_exactly_their_rows_and_together_the_whole(case: Case) -> None:
    backend, request, bounds = case
    whole = backend.score(request)
    for start, stop in pairwise(bounds):
        piece = cut(backend.spec, request, start, stop)
        validate(backend.spec, piece)
        check(backend, piece)
        assert backend.score(piece).tolist() == whole[start:stop].tolist()


@given(cases(), st.data())
def test_a_cut_of_a_cut_is_the_cut_of_both(case: Case, data: st.DataObject) -> None:
    backend, request, bounds = case
    start, stop = bounds[0], bounds[-2] or bounds[-1]
    inner = data.draw(st.integers(0, stop - start - 1))
    once = cut(backend.spec, request, start + inner, stop)
    twice = cut(backend.spec, cut(backend.spec, request, start, stop), inner, stop - start)
    for name, array in once.inputs.items():
        assert array.tolist() == twice.inputs[name].tolist()


@given(cases())
def test_the_ids_before_a_row_are_those_of_the_rows_before_it(case: Case) -> None:
    backend, request, _ = case
    ids = id_inputs(backend.spec)
    counted = [0] + [
        count_ids(ids, cut(backend.spec, request, 0, row).inputs)
        for row in range(1, request.rows + 1)
    ]
    lengths = request.inputs["id_list_features.lengths"].tolist()
    added_up = [sum(sum(bag[:row]) for bag in lengths) for row in range(request.rows + 1)]
    assert ids_before(ids, request).tolist() == counted == added_up
