"""native_dlrm gives the artifact's scores, from the artifact and from its conversion."""

import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from backends.bring.convert import main as convert
from backends.dlrm.manifest import MODEL_FILE
from backends.native_dlrm.backend import NativeDlrmBackend
from backends.torch_dlrm.export.golden import LENGTHS, OUTPUT, VALUES, Golden
from scheduler.types import Array, Batch, InferRequest
from tests.fixtures.artifacts import take_rows
from tests.fixtures.native import load_native

TOLERANCE = 1e-6
SIZES = ([128], [1] * 8, [3, 1, 40, 0, 7], [64, 64], [5, 0, 0, 5], [0], [0, 0], [127, 1])


def cut(golden: Golden, sizes: list[int]) -> Iterator[InferRequest]:
    for start, stop in pairwise(np.cumsum([0, *sizes]).tolist()):
        yield take_rows(golden.request(), start, stop)


def score(backend: NativeDlrmBackend, *requests: InferRequest) -> Array:
    return backend.prepare(Batch(requests))()[OUTPUT]


def assert_golden(actual: Array, golden: Golden) -> None:
    whole = golden.served[OUTPUT].astype(np.float64)
    expected = whole[: len(actual)]
    assert actual.dtype == np.float32
    assert whole.std() >= 0.05
    assert (np.abs(actual.astype(np.float64) - expected) <= TOLERANCE).all()


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_coalesced_requests_score_as_the_artifact(
    native_backend: NativeDlrmBackend, golden: Golden, sizes: list[int]
) -> None:
    scores = score(native_backend, *cut(golden, sizes))
    assert scores.shape == (sum(sizes),)
    assert_golden(scores, golden)


def test_a_batch_larger_than_a_block_scores_the_same(
    small_artifact: Path, kernel_cache: Path, golden: Golden
) -> None:
    backend = load_native(small_artifact, kernel_cache, lanes=1, max_batch_rows=640)
    scores = score(backend, *[golden.request()] * 5)
    for start in range(0, 640, 128):
        assert_golden(scores[start : start + 128], golden)


def test_a_changed_id_changes_only_its_row(
    native_backend: NativeDlrmBackend, golden: Golden
) -> None:
    request = take_rows(golden.request(), 0, 8)
    values = request.inputs[VALUES].copy()
    values[0] = (values[0] + 1) % 1000
    row = int(np.argmax(request.inputs[LENGTHS][0] > 0))
    changed = InferRequest("", 8, {**request.inputs, VALUES: values})
    before, after = (score(native_backend, each).astype(np.float64) for each in (request, changed))
    gap = np.abs(after - before)
    assert gap[row] > 1e-4
    assert np.delete(gap, row).max() == 0


def test_scores_outlive_the_next_batch(native_backend: NativeDlrmBackend, golden: Golden) -> None:
    first = score(native_backend, golden.request())
    score(native_backend, take_rows(golden.request(), 5, 90))
    assert_golden(first, golden)


@pytest.mark.parametrize("verify", [True, False])
def test_a_bare_file_and_a_conversion_score_the_same(
    small_artifact: Path, kernel_cache: Path, golden: Golden, tmp_path: Path, verify: bool
) -> None:
    assert convert([str(small_artifact), str(tmp_path / "out"), "--name", "renamed"]) == 0
    for path, name in ((small_artifact / MODEL_FILE, "model"), (tmp_path / "out", "renamed")):
        backend = load_native(path, kernel_cache, lanes=1, verify=verify)
        assert_golden(score(backend, golden.request()), golden)
        assert backend.spec.name == name


def test_convert_says_what_is_wrong_and_writes_nothing(
    small_artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert([str(tmp_path / "absent.pt"), str(tmp_path / "out")]) == 1
    assert "absent.pt does not exist" in capsys.readouterr().err
    (tmp_path / "there").mkdir()
    assert convert([str(small_artifact), str(tmp_path / "there")]) == 1
    assert "there exists" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [tmp_path / "there"]


ASK = """
import sys
import numpy as np
from backends.native_dlrm.backend import NativeDlrmBackend
from scheduler.types import Batch, InferRequest
backend = NativeDlrmBackend(NativeDlrmBackend.Options(sys.argv[1], lanes=1, cache_dir=sys.argv[2]))
backend.load()
spec = backend.spec
ones = {
    "float_features": np.ones((2, 13), np.float32),
    "id_list_features.lengths": np.ones((26, 2), np.int64),
    "id_list_features.values": np.ones(52, np.int64),
}
request = InferRequest("", 2, ones)
backend.check(request)
assert len(backend.prepare(Batch((request,)))()["default"]) == 2
print(sorted({"torch", "fbgemm_gpu", "torchrec"} & sys.modules.keys()))
"""


def test_a_process_that_computes_never_imports_torch(
    small_artifact: Path, kernel_cache: Path
) -> None:
    command = [sys.executable, "-c", ASK, str(small_artifact), str(kernel_cache)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
