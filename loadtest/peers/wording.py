"""Narsil's JSON in the words of peers that have their own, and their answers in ours."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from loadtest.requests import Bodies


def _same(body: bytes) -> bytes:
    return body


@dataclass(frozen=True, slots=True)
class Wording:
    """How a peer is asked, given our request, and what its answer is in ours."""

    ask: Callable[[bytes], bytes] = _same
    told: Callable[[bytes], bytes] = _same


class Reworded(Bodies):
    """The requests in ``folder`` as a peer takes them."""

    def __init__(self, folder: Path, wording: Wording) -> None:
        super().__init__(folder)
        self._words = [wording.ask(Bodies.__getitem__(self, n)) for n in range(len(self))]

    def __getitem__(self, number: int) -> bytes:
        return self._words[number]


def _listed(body: bytes) -> bytes:
    return b'{"requests":[' + body + b"]}"


def _unlisted(body: bytes) -> bytes:
    """Return the only one of a list; Raises ValueError."""
    (answer,) = orjson.loads(body)
    return orjson.dumps(answer)


def _as_oip(body: bytes) -> bytes:
    """Return Open Inference JSON whose tensors all lead with rows, so that requests can be joined.

    lengths is (rows, features), values row by row; dense is last, for its shape says the rows.
    """
    document = orjson.loads(body)
    bags = list(zip(*document["id_list_features"].values(), strict=True))
    lengths = [[len(ids) for ids in row] for row in bags]
    values = [one for row in bags for ids in row for one in ids]
    inputs = [
        _tensor("values", "INT32", values),
        _tensor("lengths", "INT32", lengths),
        _tensor("float_features", "FP32", document["float_features"]),
    ]
    return orjson.dumps({"inputs": inputs})


def _tensor(name: str, datatype: str, data: Any) -> Mapping[str, Any]:
    array = np.array(data)
    return {
        "name": name,
        "datatype": datatype,
        "shape": list(array.shape),
        "data": array.reshape(-1).tolist(),
    }


def _from_oip(body: bytes) -> bytes:
    outputs = orjson.loads(body)["outputs"]
    return orjson.dumps({"predictions": {one["name"]: one["data"] for one in outputs}})


PLAIN = Wording()
LISTED = Wording(_listed, _unlisted)
OPEN_INFERENCE = Wording(_as_oip, _from_oip)
