"""Each kind of bad input has one answer, the same over every wire that can express it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pytest

from scheduler.errors import Code
from scheduler.types import InferRequest, ModelSpec
from tests.contract.conftest import encode
from tests.fixtures.requests import (
    DENSE,
    LENGTHS,
    VALUES,
    as_document,
    as_json,
    as_protobuf,
    dense_width,
    features,
    random_request,
)
from tests.fixtures.serving import Served
from tests.fixtures.wires import Wire
from transports.proto.predictor_pb2 import PredictionRequest

# As its fixtures do: servers are shared.
pytestmark = pytest.mark.asyncio(loop_scope="module")

Edit = Callable[[PredictionRequest], None]
EditDocument = Callable[[dict[str, Any]], None]


def one_id_a_bag(spec: ModelSpec, rows: int = 2) -> InferRequest:
    """Return a valid request, easy to break."""
    return InferRequest(
        spec.name,
        rows,
        {
            DENSE: np.ones((rows, dense_width(spec)), np.float32),
            LENGTHS: np.ones((len(features(spec)), rows), np.int64),
            VALUES: np.arange(len(features(spec)) * rows, dtype=np.int64),
        },
    )


def with_id(request: InferRequest, value: int) -> InferRequest:
    """Return ``request`` with ``value`` as the id of the second feature's first row."""
    values = request.inputs[VALUES].copy()
    values[request.rows] = value
    return InferRequest(request.model, request.rows, {**request.inputs, VALUES: values})


async def ask_afterwards(served: Served, wire: Wire) -> None:
    """The server must be as good as before."""
    request = random_request(served.engine.spec(""), 3, seed=3)
    answer = await wire.send(encode(wire, request, served))
    assert not answer.codes, answer.detail


@pytest.mark.parametrize("value", [-1, -2, 1000, 2**31, 2**32 + 7, 2**63 - 1, -(2**63)])
async def test_an_id_outside_its_table_is_refused_and_named(
    served: Served, wire: Wire, value: int
) -> None:
    spec = served.engine.spec("")
    bad = with_id(one_id_a_bag(spec), value)
    answer = await wire.send(encode(wire, bad, served))
    assert answer.codes == {Code.INVALID_REQUEST}
    assert str(value) in answer.detail
    assert features(spec)[1] in answer.detail
    assert "1000" in answer.detail
    await ask_afterwards(served, wire)


async def test_rows_over_the_limit_are_refused_and_both_numbers_named(
    served: Served, wire: Wire
) -> None:
    spec = served.engine.spec("")
    rows = spec.max_request_rows + 1
    answer = await wire.send(encode(wire, one_row_each(spec, rows), served))
    assert answer.codes == {Code.INVALID_REQUEST}
    assert str(rows) in answer.detail
    assert str(spec.max_request_rows) in answer.detail


def one_row_each(spec: ModelSpec, rows: int) -> InferRequest:
    """Return a request of ``rows`` rows without ids."""
    return InferRequest(
        spec.name,
        rows,
        {
            DENSE: np.ones((rows, dense_width(spec)), np.float32),
            LENGTHS: np.zeros((len(features(spec)), rows), np.int64),
            VALUES: np.zeros(0, np.int64),
        },
    )


async def test_an_unknown_model_is_not_found(served: Served, wire: Wire) -> None:
    request = one_id_a_bag(served.engine.spec(""))
    answer = await wire.send(encode(wire, request, served), model="nope")
    assert answer.codes == {Code.MODEL_NOT_FOUND}
    assert "nope" in answer.detail


async def test_dense_nan_and_infinity_pass_in_binary_and_stay_in_their_row(
    served: Served, protobuf_wire: Wire
) -> None:
    request = one_id_a_bag(served.engine.spec(""), rows=3)
    request.inputs[DENSE][0, 0] = np.nan
    request.inputs[DENSE][1, 0] = np.inf
    answer = await protobuf_wire.send(as_protobuf(request))
    assert not answer.codes, answer.detail
    assert np.isnan(answer.scores["default"][0])
    assert np.isfinite(answer.scores["default"][2])


@pytest.mark.parametrize("literal", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"1e39"])
async def test_dense_nan_and_infinity_are_refused_in_json(
    served: Served, json_wire: Wire, literal: bytes
) -> None:
    spec = served.engine.spec("")
    answer = await json_wire.send(as_json(one_id_a_bag(spec), spec).replace(b"1.0", literal, 1))
    assert answer.codes == {Code.INVALID_REQUEST}


@dataclass(frozen=True)
class Case:
    """One fault: how to make it in protobuf, and what the answer must name."""

    name: str
    edit: Edit
    named: tuple[str, ...]


def _set(message: Any, **fields: Any) -> None:
    for name, value in fields.items():
        setattr(message, name, value)


def _int64(*numbers: int) -> bytes:
    return np.array(numbers, np.int64).tobytes()


FAULTS = [
    Case("too few dense features", lambda m: _set(m.float_features, num_features=2,
         values=np.ones((2, 2), np.float32).tobytes()), ("float_features", "2")),
    Case("dense bytes that do not divide", lambda m: _set(m.float_features, values=b"123"),
         ("float_features", "3")),
    Case("dense features zero", lambda m: _set(m.float_features, num_features=0),
         ("float_features",)),
    Case("id features zero", lambda m: _set(m.id_list_features, num_features=0),
         ("id_list_features",)),
    Case("id features absent", lambda m: m.ClearField("id_list_features"), ("id_list_features",)),
    Case("dense features absent", lambda m: m.ClearField("float_features"), ("float_features",)),
    Case("negative feature count", lambda m: _set(m.id_list_features, num_features=-1), ("-1",)),
    Case("lengths not T x B", lambda m: _set(m.id_list_features, lengths=_int64(1)),
         ("id_list_features.lengths",)),
    Case("fewer values than the lengths say", lambda m: _set(m.id_list_features,
         values=m.id_list_features.values[8:]), ("id_list_features.values",)),
    Case("more values than the lengths say", lambda m: _set(m.id_list_features,
         values=m.id_list_features.values + _int64(1)), ("id_list_features.values",)),
    Case("negative length", lambda m: _set(m.id_list_features,
         lengths=_int64(-1) + m.id_list_features.lengths[8:]), ("length", "-1")),
    Case("lengths whose sum overflows", lambda m: _set(m.id_list_features,
         lengths=_int64(2**62, 2**62) + m.id_list_features.lengths[16:]), ("id_list_features",)),
    Case("negative batch size", lambda m: _set(m, batch_size=-1), ("batch_size", "-1")),
    Case("batch size of another request", lambda m: _set(m, batch_size=3), ("3",)),
    Case("huge batch size", lambda m: _set(m, batch_size=2**31 - 1), ("2147483647",)),
    Case("weights for a model without them", lambda m: _set(m.id_score_list_features,
         num_features=1, lengths=_int64(0, 0)), ("id_score_list_features",)),
]  # fmt: skip


@pytest.mark.parametrize("case", FAULTS, ids=lambda case: case.name)
async def test_a_broken_protobuf_request_is_refused_by_name(
    served: Served, protobuf_wire: Wire, case: Case
) -> None:
    message = PredictionRequest.FromString(as_protobuf(one_id_a_bag(served.engine.spec(""))))
    case.edit(message)
    answer = await protobuf_wire.send(message.SerializeToString())
    assert answer.codes == {Code.INVALID_REQUEST}
    for word in case.named:
        assert word in answer.detail
    await ask_afterwards(served, protobuf_wire)


@pytest.mark.parametrize("cut", [1, 10, 100, -1, -9])
async def test_truncated_protobuf_is_refused(served: Served, protobuf_wire: Wire, cut: int) -> None:
    answer = await protobuf_wire.send(as_protobuf(one_id_a_bag(served.engine.spec("")))[:cut])
    assert answer.codes == {Code.INVALID_REQUEST}


def _bags(document: dict[str, Any]) -> dict[str, Any]:
    bags: dict[str, Any] = document["id_list_features"]
    return bags


def _rename_first(document: dict[str, Any]) -> None:
    bags = _bags(document)
    bags["nope"] = bags.pop(next(iter(bags)))


def _put(document: dict[str, Any], value: object) -> None:
    _bags(document)["cat_1"][1] = [value]


DOCUMENT_FAULTS: list[tuple[str, EditDocument, tuple[str, ...]]] = [
    ("unknown feature", _rename_first, ("nope",)),
    ("missing feature", lambda d: _bags(d).pop("cat_1"), ("cat_1",)),
    ("unknown field", lambda d: d.update(flaot_features=[]), ("flaot_features",)),
    ("missing dense", lambda d: d.pop("float_features"), ("float_features",)),
    ("missing ids", lambda d: d.pop("id_list_features"), ("id_list_features",)),
    ("short dense row", lambda d: d["float_features"][1].pop(), ("float_features",)),
    ("too many rows in a feature", lambda d: _bags(d)["cat_1"].append([1]), ("cat_1",)),
    ("bool id", lambda d: _put(d, True), ("cat_1", "true")),
    ("string id", lambda d: _put(d, "17"), ("cat_1", "17")),
    ("fractional id", lambda d: _put(d, 1.5), ("cat_1", "1.5")),
    ("null id", lambda d: _put(d, None), ("cat_1", "null")),
    ("id of 2^63", lambda d: _put(d, 2**63), ("cat_1", "9223372036854775808")),
    ("nested id", lambda d: _put(d, [1]), ("cat_1",)),
    ("bag that is a number", lambda d: _bags(d)["cat_1"].__setitem__(1, 7), ("cat_1",)),
    ("string dense", lambda d: d["float_features"][0].__setitem__(0, "1"), ("float_features",)),
    ("bool dense", lambda d: d["float_features"][0].__setitem__(0, True), ("float_features",)),
    ("timeout zero", lambda d: d.update(timeout_ms=0), ("timeout_ms",)),
    ("unknown output", lambda d: d.update(outputs=["nope"]), ("nope",)),
]


@pytest.mark.parametrize(
    ("edit", "named"),
    [(edit, named) for _, edit, named in DOCUMENT_FAULTS],
    ids=[name for name, _, _ in DOCUMENT_FAULTS],
)
async def test_a_broken_json_request_is_refused_by_name(
    served: Served, json_wire: Wire, edit: EditDocument, named: tuple[str, ...]
) -> None:
    spec = served.engine.spec("")
    document = as_document(one_id_a_bag(spec), spec)
    edit(document)
    answer = await json_wire.send(orjson.dumps(document))
    assert answer.codes == {Code.INVALID_REQUEST}
    for word in named:
        assert word in answer.detail
    await ask_afterwards(served, json_wire)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"null", b"[]", b"7", b"\xff\xfe", b"{" * 100_000, b"[" * 100_000,
        b'{"float_features": ' + b"[" * 2000 + b"]" * 2000 + b"}", b"\x00" * 64,
    ],
    ids=lambda body: repr(body[:8]),
)  # fmt: skip
async def test_a_body_that_is_no_json_object_is_refused(
    served: Served, json_wire: Wire, body: bytes
) -> None:
    answer = await json_wire.send(body)
    assert answer.codes == {Code.INVALID_REQUEST}
    await ask_afterwards(served, json_wire)


async def test_a_duplicate_key_is_refused_and_named(served: Served, json_wire: Wire) -> None:
    spec = served.engine.spec("")
    text = as_json(one_id_a_bag(spec), spec)
    twice = text.replace(b'"cat_1":', b'"cat_1":[[5],[5]],"cat_1":', 1)
    escaped = text.replace(b'"cat_1":', b'"cat\\u005f1":[[5],[5]],"cat_1":', 1)
    for body in (twice, escaped):
        answer = await json_wire.send(body)
        assert answer.codes == {Code.INVALID_REQUEST}
        assert "cat_1" in answer.detail
