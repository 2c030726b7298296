"""``narsil serve --backend onnx_dlrm``: the artifact's scores from an ONNX file."""

import json
import urllib.request
from pathlib import Path

import numpy as np

from backends.torch_dlrm.backend import TorchDlrmBackend
from backends.torch_dlrm.export.golden import OUTPUT
from scheduler.types import Batch, InferRequest
from tests.e2e.process import narsil_serve


def test_an_onnx_file_is_served_by_a_process_without_pytorch(
    onnx_folder: Path, small_backend: TorchDlrmBackend, tmp_path: Path
) -> None:
    body = (onnx_folder / "example.json").read_bytes()
    arguments = [str(onnx_folder), "--backend", "onnx_dlrm", "--max-batch-rows", "64"]
    with narsil_serve(tmp_path, arguments, ["http"]) as server:
        asked = urllib.request.Request(
            f"{server.urls['http']}/v1/predict", body, {"content-type": "application/json"}
        )
        with urllib.request.urlopen(asked, timeout=30) as answer:
            scores = json.load(answer)["predictions"][OUTPUT]
        mapped = Path(f"/proc/{server.popen.pid}/maps").read_text()
    assert "libtorch" not in mapped
    assert "model.onnx.data" in mapped
    assert np.abs(np.array(scores) - expected(small_backend, json.loads(body))).max() <= 1e-6


def expected(backend: TorchDlrmBackend, body: dict[str, dict[str, list[list[int]]]]) -> object:
    bags = [bag for column in body["id_list_features"].values() for bag in column]
    inputs = {
        "float_features": np.array(body["float_features"], np.float32),
        "id_list_features.lengths": np.array([len(bag) for bag in bags]).reshape(-1, 3),
        "id_list_features.values": np.array([number for bag in bags for number in bag], np.int64),
    }
    return backend.prepare(Batch((InferRequest("", 3, inputs),)))()[OUTPUT]
