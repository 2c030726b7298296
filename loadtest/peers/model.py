"""What every peer runs: the artifact in torch, one batch of several requests.

It is imported in a peer's own virtualenv: it needs torch, FBGEMM, NumPy and protobuf, and
nothing of Narsil but the generated messages.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Registers the fbgemm:: operators that an artifact names.
import fbgemm_gpu  # noqa: F401
import numpy as np
import numpy.typing as npt
import torch

from transports.proto import predictor_pb2

Array = npt.NDArray[Any]
Tensors = tuple[Array, Array, Array]  # dense (rows, columns), lengths (features, rows), values


class Model:
    """The artifact in ``folder`` on one thread."""

    def __init__(self, folder: str) -> None:
        torch.set_num_threads(1)
        manifest = json.loads(Path(folder, "manifest.json").read_text(encoding="utf-8"))
        self._features = [table["feature"] for table in manifest["tables"]]
        load: Any = torch.jit.load
        self._module = load(str(Path(folder, "model.pt"))).eval()

    def from_json(self, body: Mapping[str, Any]) -> Tensors:
        """Read a request in Narsil's row-wise JSON."""
        bags = [body["id_list_features"][name] for name in self._features]
        lengths = np.array([[len(ids) for ids in bag] for bag in bags], np.int32)
        values = np.array([one for bag in bags for ids in bag for one in ids], np.int32)
        return np.array(body["float_features"], np.float32), lengths, values

    def from_bytes(self, body: bytes) -> Tensors:
        """Read a predictor.PredictionRequest with 32-bit ids."""
        request = predictor_pb2.PredictionRequest.FromString(body)
        ids, rows = request.id_list_features, request.batch_size
        dense = np.frombuffer(request.float_features.values, np.float32).reshape(rows, -1)
        lengths = np.frombuffer(ids.lengths, np.int32).reshape(-1, rows)
        return dense, lengths, np.frombuffer(ids.values, np.int32)

    def predict(self, requests: Sequence[Tensors]) -> list[Array]:
        """Run one forward of all rows; return each request's scores."""
        dense = np.concatenate([one[0] for one in requests])
        lengths = np.concatenate([one[1] for one in requests], axis=1)
        # Key-major: all of a feature's ids, request by request, before the next feature's.
        bags = [np.split(v, np.cumsum(n.sum(axis=1))[:-1]) for _, n, v in requests]
        values = np.concatenate([bag for feature in zip(*bags, strict=True) for bag in feature])
        with torch.inference_mode():
            scores = self._module(
                {
                    "float_features": torch.from_numpy(dense),
                    "id_list_features.lengths": torch.from_numpy(lengths),
                    "id_list_features.values": torch.from_numpy(values),
                }
            )["default"]
        ends = np.cumsum([len(one[0]) for one in requests])[:-1]
        return np.split(scores.numpy().reshape(-1), ends)


def as_json(scores: Array) -> dict[str, Any]:
    """Return an answer as Narsil words it."""
    return {"predictions": {"default": scores.tolist()}}


def as_bytes(scores: Array) -> bytes:
    """Return a serialised predictor.PredictionResponse."""
    response = predictor_pb2.PredictionResponse()
    response.predictions["default"].data.extend(scores.tolist())
    return bytes(response.SerializeToString())
