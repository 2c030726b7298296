"""What is refused of a context in JSON, by name."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest

from scheduler.errors import Code, ServingError
from scheduler.types import ModelSpec
from tests.fixtures.ranking import ASKED, HAS, SPEC, everything, plain, random_ranked
from tests.fixtures.requests import DENSE
from transports.codecs import predict_json

Document = dict[str, Any]


def json_refusal(document: Document, spec: ModelSpec = SPEC) -> str:
    with pytest.raises(ServingError) as error:
        predict_json.decode_request(orjson.dumps(document), spec)
    assert error.value.code is Code.INVALID_REQUEST
    return error.value.detail


def put(*path: str, value: Any) -> Callable[[Document], None]:
    def edit(document: Document) -> None:
        place = document
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value

    return edit


def drop(*path: str) -> Callable[[Document], None]:
    def edit(document: Document) -> None:
        place = document
        for name in path[:-1]:
            place = place[name]
        del place[path[-1]]

    return edit


BAGS = "id_list_features"
JSON_FAULTS = [
    (put("context", value=[]), "context is a list, expected an object"),
    (put("context", value=None), "context is null, expected an object"),
    (put("context", "rows", value=1), ('context has unknown field "rows", expected'
     " float_features, float_columns, id_list_features")),
    (put("context", DENSE, value=[[1, 2]]),
     "context.float_features[0] is a list, expected a number"),
    (put("context", DENSE, value=0.5),
     "context.float_features is 0.5, expected a flat list of numbers"),
    (put("context", DENSE, value=[1, True]),
     "context.float_features[1] is true, expected a number"),
    (put("context", DENSE, value=[1, 2, 3]),
     "context.float_columns: has 2 entries, expected 3: one for each column"),
    (put("context", DENSE, value=[1, 2, 3, 4]),
     "context.float_columns: the context has 4 columns, the model 3"),
    (put("context", "float_columns", value={}),
     "context.float_columns is an object, expected a list of columns"),
    (put("context", "float_columns", value=None),
     "context.float_columns is null, expected a list of columns"),
    (put("context", "float_columns", value=[0, 1.5]),
     "context.float_columns[1] is 1.5, expected an integer"),
    (put("context", "float_columns", value=[0, 3]),
     "context.float_columns: no column 3, the model has 0..2"),
    (put("context", "float_columns", value=[-1, 0]),
     "context.float_columns: no column -1, the model has 0..2"),
    (put("context", "float_columns", value=[2, 2]),
     "context.float_columns: column 2 is given twice"),
    (drop("context", DENSE),
     "context.float_columns: has 2 entries, expected 0: one for each column"),
    (put("context", BAGS, value=[]),
     "context.id_list_features is a list, expected an object of features"),
    (put("context", BAGS, "nope", value=[]), ('context.id_list_features has unknown feature "nope":'
     " the model has 3, from cat_0 to cat_2")),
    (put("context", BAGS, "cat_0", value=7),
     "context.id_list_features.cat_0 is 7, expected a list of ids"),
    (put("context", BAGS, "cat_0", value=[[3]]),
     "context.id_list_features.cat_0[0] is a list, expected an integer"),
    (put("context", BAGS, "cat_0", value=[3, 2**63]),
     "context.id_list_features.cat_0[1] is 9223372036854775808, which does not fit int64"),
    (put("context", BAGS, "cat_1", value=[3]),
     "feature 'cat_1': given in the context and with the candidates, too"),
    (drop("context", BAGS, "cat_0"), ("id_list_features lacks feature cat_0 (1 of 3 missing)"
     "; the context has 2 of 3 float columns and 0 of 3 id features")),
    (drop(BAGS, "cat_1"), f"id_list_features lacks feature cat_1 (1 of 2 missing){HAS}"),
    (drop(BAGS), f"field id_list_features is missing{HAS}"),
    (drop(DENSE), f"field float_features is missing{HAS}"),
    (put(BAGS, value=[]), f"id_list_features is a list, expected an object of features{HAS}"),
    (put(DENSE, value=[[1.0], [1.0, 2.0]]),
     f"float_features row 1 has 2 values, expected 1{HAS}"),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "detail"), JSON_FAULTS, ids=[d for _, d in JSON_FAULTS])
def test_a_broken_context_in_json_is_refused_by_name(
    edit: Callable[[Document], None], detail: str
) -> None:
    document = copy.deepcopy(ASKED.row_wise())
    edit(document)
    assert json_refusal(document) == detail


def test_columnar_candidates_are_counted_without_the_contexts_columns() -> None:
    document = copy.deepcopy(ASKED.columnar())
    document[DENSE].append(0.5)
    assert json_refusal(document) == f"{DENSE} has 3 values, expected 2: 2 rows x 1{HAS}"


def test_a_context_that_has_everything_needs_rows() -> None:
    asked = everything(4)
    detail = "context: has every column and feature, so nothing tells the candidates' rows"
    assert json_refusal(asked.row_wise()) == detail
    request = predict_json.decode_request(orjson.dumps(asked.columnar()), SPEC)
    for name, array in asked.spelled_out().inputs.items():
        np.testing.assert_array_equal(request.inputs[name], array)


def test_leading_columns_need_no_naming() -> None:
    asked = random_ranked(SPEC, rows=3, seed=7, columns=(0, 1), shared=("cat_0", "cat_1"))
    document = asked.row_wise()
    del document["context"]["float_columns"]
    request = predict_json.decode_request(orjson.dumps(document), SPEC)
    for name, array in asked.spelled_out().inputs.items():
        np.testing.assert_array_equal(request.inputs[name], array, strict=True)


def test_a_model_without_columns_or_features_takes_no_context() -> None:
    for spec in (plain("rows", 3), plain("rows", "*", name=DENSE)):
        assert json_refusal({"context": {}}, spec) == "model plain takes no context"


def test_a_model_of_ids_alone_has_no_columns_for_a_context() -> None:
    spec = replace(SPEC, inputs=SPEC.inputs[1:])
    detail = json_refusal({"context": {DENSE: [1.0]}, BAGS: {}}, spec)
    assert detail == "context.float_columns: the context has 1 columns, the model 0"
