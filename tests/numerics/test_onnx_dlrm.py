"""onnx_dlrm gives the artifact's scores, from the file that narsil export-onnx writes."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from backends.dlrm.manifest import GOLDEN_FILE, MODEL_FILE, read_manifest
from backends.onnx_dlrm.backend import OnnxDlrmBackend
from backends.onnx_dlrm.export.command import main as export_onnx
from backends.onnx_dlrm.export.weights import read_weights
from backends.torch_dlrm.backend import TorchDlrmBackend
from backends.torch_dlrm.export.golden import LENGTHS, OUTPUT, VALUES, Golden
from backends.torchscript_file.reader import read_torchscript
from backends.torchscript_file.tree import modules
from scheduler.backend import Backend
from scheduler.errors import LoadError
from scheduler.types import Array, Batch, InferRequest
from tests.fixtures.artifacts import take_rows

TOLERANCE = 1e-6
SIZES = ([128], [1] * 8, [3, 1, 40, 0, 7], [64, 64], [5, 0, 0, 5], [0], [0, 0], [127, 1])


def cut(golden: Golden, sizes: list[int]) -> Iterator[InferRequest]:
    for start, stop in pairwise(np.cumsum([0, *sizes]).tolist()):
        yield take_rows(golden.request(), start, stop)


def score(backend: Backend, *requests: InferRequest) -> Array:
    return backend.prepare(Batch(requests))()[OUTPUT]


def assert_golden(actual: Array, golden: Golden) -> None:
    whole = golden.served[OUTPUT].astype(np.float64)
    assert actual.dtype == np.float32
    assert whole.std() >= 0.05
    assert (np.abs(actual.astype(np.float64) - whole[: len(actual)]) <= TOLERANCE).all()


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_coalesced_requests_score_as_the_artifact(
    onnx_backend: OnnxDlrmBackend, golden: Golden, sizes: list[int]
) -> None:
    scores = score(onnx_backend, *cut(golden, sizes))
    assert scores.shape == (sum(sizes),)
    assert_golden(scores, golden)


def test_rows_without_any_id_score_as_the_artifact(
    onnx_backend: OnnxDlrmBackend, small_backend: TorchDlrmBackend, golden: Golden
) -> None:
    request = take_rows(golden.request(), 0, 3)
    nothing = {LENGTHS: np.zeros((26, 3), np.int64), VALUES: np.zeros(0, np.int64)}
    empty = InferRequest("", 3, {**request.inputs, **nothing})
    ours, wanted = (score(backend, empty) for backend in (onnx_backend, small_backend))
    assert np.abs(ours.astype(np.float64) - wanted.astype(np.float64)).max() <= TOLERANCE


def test_a_changed_id_changes_only_its_row(onnx_backend: OnnxDlrmBackend, golden: Golden) -> None:
    request = take_rows(golden.request(), 0, 8)
    values = request.inputs[VALUES].copy()
    values[0] = (values[0] + 1) % 1000
    row = int(np.argmax(request.inputs[LENGTHS][0] > 0))
    changed = InferRequest("", 8, {**request.inputs, VALUES: values})
    before, after = (score(onnx_backend, each).astype(np.float64) for each in (request, changed))
    gap = np.abs(after - before)
    assert gap[row] > 1e-4
    assert np.delete(gap, row).max() == 0


def test_scores_outlive_the_next_batch(onnx_backend: OnnxDlrmBackend, golden: Golden) -> None:
    first = score(onnx_backend, golden.request())
    score(onnx_backend, take_rows(golden.request(), 5, 90))
    assert_golden(first, golden)


def test_the_spec_is_that_of_the_artifact(
    onnx_backend: OnnxDlrmBackend, small_backend: TorchDlrmBackend
) -> None:
    ours, wanted = onnx_backend.spec, small_backend.spec
    assert (ours.name, ours.version) == (wanted.name, wanted.version)
    assert (ours.inputs, ours.outputs) == (wanted.inputs, wanted.outputs)
    assert ours.properties["table_rows"] == wanted.properties["table_rows"]


def test_the_file_is_served_from_its_own_path_and_renamed(
    onnx_folder: Path, golden: Golden
) -> None:
    options = OnnxDlrmBackend.Options(
        str(onnx_folder / "model.onnx"), lanes=1, max_batch_rows=128, name="ours", version="7"
    )
    backend = OnnxDlrmBackend(options)
    backend.load()
    assert (backend.spec.name, backend.spec.version, backend.lanes) == ("ours", "7", 1)
    assert_golden(score(backend, golden.request()), golden)


def test_export_says_what_is_wrong_and_writes_nothing(
    small_artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "there").mkdir()
    assert export_onnx([str(small_artifact), str(tmp_path / "there")]) == 1
    assert "there exists" in capsys.readouterr().err
    assert export_onnx([str(tmp_path / "there"), str(tmp_path / "out")]) == 1
    assert "has no manifest.json" in capsys.readouterr().err
    assert export_onnx([str(small_artifact / "model.pt"), str(tmp_path / "out")]) == 1
    assert "model.pt is no folder: name the artifact's" in capsys.readouterr().err
    shutil.copy(small_artifact / "manifest.json", tmp_path / "there")
    (tmp_path / "there" / "model.pt2").touch()
    assert export_onnx([str(tmp_path / "there"), str(tmp_path / "out")]) == 1
    assert "model.pt2: ONNX is written of a model.pt (narsil export)" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [tmp_path / "there"]


def test_a_file_that_does_not_give_the_golden_scores_is_not_kept(
    small_artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact = tmp_path / "artifact"
    shutil.copytree(small_artifact, artifact)
    with np.load(artifact / GOLDEN_FILE) as golden:
        arrays = dict(golden)
    arrays[f"served.{OUTPUT}"][5] += np.float32(1e-4)
    np.savez(artifact / GOLDEN_FILE, allow_pickle=False, **arrays)
    assert export_onnx([str(artifact), str(tmp_path / "out")]) == 1
    assert "scores are 0.0001 from the artifact's golden ones" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [artifact]


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"pooling_mode": 1}, "only tables pooled by their sum"),
        ({"scale_bias_size_in_bytes": 8}, "only tables pooled by their sum"),
        ({"embedding_specs": None}, "a lookup is not laid out as TorchRec's"),
        ({"feature_names_per_table": []}, "a lookup is not laid out as TorchRec's"),
        ({"weights_host": None}, "a lookup is not laid out as TorchRec's"),
    ],
)
def test_a_lookup_of_another_kind_is_not_written(
    small_artifact: Path, attributes: dict[str, object], words: str
) -> None:
    file = read_torchscript(small_artifact / MODEL_FILE)
    for _, module in modules(file.root):
        if "embedding_specs" in module.attributes:
            module.attributes.update(attributes)
    with pytest.raises(LoadError, match=words):
        read_weights(file, read_manifest(small_artifact))


ASK = """
import sys
import numpy as np
from backends.onnx_dlrm.backend import OnnxDlrmBackend
from scheduler.types import Batch, InferRequest
backend = OnnxDlrmBackend(OnnxDlrmBackend.Options(sys.argv[1], lanes=1, max_batch_rows=64))
backend.load()
print(sorted({"torch", "fbgemm_gpu", "torchrec", "onnx"} & sys.modules.keys()))
"""


def test_a_process_that_serves_imports_neither_torch_nor_the_exporters_library(
    onnx_folder: Path,
) -> None:
    command = [sys.executable, "-c", ASK, str(onnx_folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
