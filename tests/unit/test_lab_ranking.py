"""The tool that measures what a context saves."""

from argparse import Namespace
from dataclasses import replace

import numpy as np
import pytest

from loadtest.lab import ranking, ranking_compute
from loadtest.lab.ranking_bodies import Shape, bodies, draw_parts


async def test_every_form_is_measured_once_both_are_known_to_be_the_same() -> None:
    lines = await ranking.table(
        Namespace(candidates=[3], histories=4, history_ids=50, seconds=0.0, rounds=1, seed=0)
    )
    assert len(lines) == 6
    for line in lines:
        spelled_out, with_context = map(int, str(line["bytes"]).split(" -> "))
        assert with_context < spelled_out
        assert (line["round trip us"] == "-") == ("gRPC" in str(line["form"]))


def test_forms_that_differ_are_not_compared() -> None:
    parts = draw_parts(ranking.reference_backend(2).spec, rows=2, shape=Shape(), seed=0)
    spelled_out, _ = bodies(parts)["JSON, columnar"]
    request = spelled_out.decode()
    dense = np.nextafter(request.inputs["float_features"], 9, dtype=np.float32)
    other = replace(request, inputs={**request.inputs, "float_features": dense})
    with pytest.raises(ValueError, match="float_features differs"):
        ranking.check_same(request, other)


def test_what_is_computed_both_ways_is_one_request_that_shares_all_dense_values() -> None:
    spec = ranking.reference_backend(20).spec
    parts = draw_parts(spec, rows=20, shape=Shape(dense=13), seed=0)
    spelled_out, with_context = (form.decode() for form in ranking_compute.written(parts))
    ranking.check_same(spelled_out, with_context)
    assert spelled_out.shared is None
    assert with_context.shared is not None
    assert with_context.shared["float_features"] == tuple(range(13))
