"""Texts as ids: every wire that has strings, against the rows they stand for."""

import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from backends.fake import FakeBackend, FakeOptions
from backends.ids.declared import Declared, make_rules
from backends.ids.rules import IdRules
from backends.ids.vocabulary import Vocabulary
from scheduler.errors import Missed
from scheduler.types import Array, InferRequest
from tests.contract.every_wire import Asker, HttpAsker, every_wire
from tests.fixtures.behind_front_ends import MakeFrontEnds
from tests.fixtures.ids import with_bags
from tests.fixtures.serving import Served, serving
from transports.codecs.oip_texts import MAX_TEXT_BYTES
from transports.proto.open_inference_pb2 import InferTensorContents, ModelInferRequest

DENSE = [[1.0, 2.0, 3.0], [0.5, 0.5, 0.5]]
TEXTS = ["anna", "b\u00e9la", "nobody"]
RAW = b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in TEXTS)
OWN = {"cat_0.lengths": [1, 1], "cat_0.values": [1, 2], "cat_1.lengths": [1, 2]}


class TextBackend(FakeBackend):
    """The fake, with a vocabulary of its second feature."""

    def load(self) -> None:
        known = Vocabulary({"anna": 7, "b\u00e9la": 9})
        policies = make_rules(self._layout, Declared(), ["cat_1=zero"]).parsed
        self._rules = IdRules(self._layout, policies, {"cat_1": known})

    def expected(self) -> bytes:
        """Return the scores of the request that every test sends."""
        inputs: dict[str, Array] = {"float_features": np.array(DENSE, np.float32)}
        rows = [[[1], [2]], [[7], [9]]]
        return self.score(with_bags(InferRequest("", 2, inputs), rows)).tobytes()


@pytest.fixture
def backend() -> TextBackend:
    return TextBackend(FakeOptions())


@pytest.fixture
async def served(
    backend: TextBackend, certificates: Path, front_ends: MakeFrontEnds
) -> AsyncIterator[Served]:
    async with serving(backend, certificates, front_ends=front_ends()) as running:
        yield running


@pytest.fixture
async def wires(served: Served) -> AsyncIterator[dict[str, Asker]]:
    async with every_wire(served) as connected:
        yield connected


def entry(name: str, data: list[Any], datatype: str = "INT64") -> dict[str, Any]:
    shape = [len(data), 3] if datatype == "FP32" else [len(data)]
    return {"name": name, "shape": shape, "datatype": datatype, "data": data}


def documents() -> dict[str, dict[str, Any]]:
    """Return the request in JSON, by the wire that takes it."""
    columns = {
        "cat_0": {"lengths": [1, 1], "values": [1, 2]},
        "cat_1": {"lengths": [1, 2], "values": TEXTS},
    }
    by_row = {"cat_0": [[1], [2]], "cat_1": [TEXTS[:1], TEXTS[1:]]}
    own = [entry(name, data) for name, data in OWN.items()]
    dense = entry("float_features", DENSE, "FP32")
    return {
        "HTTP/1.1 JSON": {"float_features": DENSE, "id_list_features": by_row},
        "HTTP/3 JSON": {
            "rows": 2,
            "float_features": [value for row in DENSE for value in row],
            "id_list_features": columns,
        },
        "HTTP/1.1 OIP JSON": {"inputs": [dense, *own, entry("cat_1.values", TEXTS, "BYTES")]},
    }


def message(*, raw: bytes | None = None, texts: list[bytes] | None = None) -> bytes:
    """Return the request as ModelInfer has it, its texts raw or typed."""
    request = ModelInferRequest(model_name="fake")
    sent: dict[str, Any] = {"float_features": DENSE, **OWN, "cat_1.values": TEXTS}
    for name, data in sent.items():
        floats, text = name == "float_features", name == "cat_1.values"
        datatype = "FP32" if floats else "BYTES" if text else "INT64"
        tensor = request.inputs.add(name=name, datatype=datatype, shape=np.shape(data))
        if raw is not None:
            array = np.array([] if text else data, np.float32 if floats else np.int64)
            request.raw_input_contents.append(raw if text else array.tobytes())
        elif text:
            tensor.contents.CopyFrom(InferTensorContents(bytes_contents=texts))
        elif floats:
            tensor.contents.fp32_contents.extend(np.ravel(data))
        else:
            tensor.contents.int64_contents.extend(OWN[name])
    return request.SerializeToString()


def binary_body() -> tuple[dict[str, str], bytes]:
    """Return the request as HTTP has it with its texts after the JSON."""
    document = documents()["HTTP/1.1 OIP JSON"]
    last = document["inputs"][-1]
    del last["data"]
    last["parameters"] = {"binary_data_size": len(RAW)}
    head = orjson.dumps(document)
    return {"inference-header-content-length": str(len(head))}, head + RAW


async def test_texts_are_looked_up_on_every_wire_that_has_them(
    backend: TextBackend, served: Served, wires: dict[str, Asker]
) -> None:
    outcomes = {
        wire: await wires[wire].ask_bytes(orjson.dumps(document))
        for wire, document in documents().items()
    }
    outcomes["raw"] = await wires["gRPC OIP"].ask_bytes(message(raw=RAW))
    typed = message(texts=[text.encode() for text in TEXTS])
    outcomes["typed"] = await wires["gRPC OIP"].ask_bytes(typed)
    binary = wires["HTTP/1.1 OIP binary"]
    assert isinstance(binary, HttpAsker)
    outcomes["binary"] = await binary._post(*binary_body(), "fake")
    for name, outcome in outcomes.items():
        assert outcome.scores == backend.expected(), (name, outcome)
    assert served.recorder.ids == {Missed("cat_1", "zero", 0): len(outcomes)}


async def test_a_context_may_have_texts(backend: TextBackend, wires: dict[str, Asker]) -> None:
    context = {"id_list_features": {"cat_1": ["anna", "nobody"]}}
    own = {"float_features": DENSE, "id_list_features": {"cat_0": [[1], [2]]}}
    spelled = {"cat_0": [[1], [2]], "cat_1": [[7], [7]]}
    document = {"float_features": DENSE, "id_list_features": spelled}
    short = await wires["HTTP/1.1 JSON"].ask_bytes(orjson.dumps({"context": context, **own}))
    assert short.scores
    assert short == await wires["HTTP/1.1 JSON"].ask_bytes(orjson.dumps(document))


REFUSED = [
    (RAW[:-1], "entry 2 ends after the last of 26 bytes"),
    (RAW + b"\x00", "entry 3 ends after the last of 28 bytes"),
    (RAW[:8], "has 1 entries, expected 3: shape [3]"),
    (b"\x01\x00\x00\x00\xff" * 3, "entry 0 is not UTF-8"),
    (b"\x00" * (MAX_TEXT_BYTES + 4), "above the limit of 1048576 bytes"),
]


async def test_texts_that_are_none_are_refused(wires: dict[str, Asker]) -> None:
    for raw, words in REFUSED:
        outcome = await wires["gRPC OIP"].ask_bytes(message(raw=raw))
        assert outcome.status == "INVALID_ARGUMENT"
        assert "tensor 'cat_1.values': " in outcome.detail
        assert words in outcome.detail


async def test_texts_elsewhere_are_refused(wires: dict[str, Asker]) -> None:
    document = documents()["HTTP/1.1 OIP JSON"]
    document["inputs"][2] = entry("cat_0.values", ["anna", "anna"], "BYTES")
    outcome = await wires["HTTP/1.1 OIP JSON"].ask_bytes(orjson.dumps(document))
    assert outcome.status == "400"
    assert "datatype 'BYTES' is not supported: only cat_1.values take texts" in outcome.detail
    rows = {"cat_0": [["anna"], [2]], "cat_1": [["anna"], []]}
    body = orjson.dumps({"float_features": DENSE, "id_list_features": rows})
    outcome = await wires["HTTP/1.1 JSON"].ask_bytes(body)
    assert 'cat_0 row 0, id 0, is "anna", expected an integer' in outcome.detail
