"""Policies and vocabularies travel with a model: from its manifest into every form of it."""

import json
import shutil
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from backends.bring.convert import main as convert
from backends.dlrm.manifest import MANIFEST_FILE
from scheduler.backend import Backend
from scheduler.errors import LoadError
from tests.fixtures.artifacts import load
from tests.fixtures.native import load_native
from tests.fixtures.onnx import load_onnx

SHOWN = "cat_0=hash:murmur3:7,cat_1=zero,*=reject"


@pytest.fixture
def artifact(small_artifact: Path, tmp_path: Path) -> Path:
    """``small_artifact`` with policies and a vocabulary."""
    folder = Path(shutil.copytree(small_artifact, tmp_path / "small"))
    manifest = json.loads((folder / MANIFEST_FILE).read_text())
    manifest["tables"][0]["ids"] = "hash:murmur3:7"
    manifest["tables"][1] |= {"ids": "zero", "vocabulary": "users.parquet"}
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest))
    parquet.write_table(pyarrow.table({"user": ["anna", "bob"]}), folder / "users.parquet")
    return folder


def check_spec(backend: Backend) -> None:
    spec = backend.spec
    assert spec.properties["ids"] == SHOWN
    assert spec.id_policies["cat_0"] == "hash"
    assert spec.id_policies["cat_2"] == "reject"
    assert spec.vocabularies["cat_1"].ids_of(["bob"]).tolist() == [1]


def test_torch_dlrm_has_what_the_manifest_says(artifact: Path) -> None:
    check_spec(load(artifact, lanes=1, max_batch_rows=2))


def test_a_converted_folder_has_what_the_artifact_says(
    artifact: Path, kernel_cache: Path, tmp_path: Path
) -> None:
    check_spec(load_native(artifact, kernel_cache, lanes=1, max_batch_rows=2))
    assert convert([str(artifact), str(tmp_path / "out")]) == 0
    shutil.rmtree(artifact)
    check_spec(load_native(tmp_path / "out", kernel_cache, lanes=1, max_batch_rows=2))


@pytest.mark.slow
def test_an_onnx_file_has_what_the_artifact_says(artifact: Path, tmp_path: Path) -> None:
    from backends.onnx_dlrm.export.write import export  # noqa: PLC0415

    export(artifact, tmp_path / "onnx")
    shutil.rmtree(artifact)
    check_spec(load_onnx(tmp_path / "onnx", max_batch_rows=2))


def test_a_vocabulary_that_is_gone_keeps_the_model_from_being_ready(
    artifact: Path, kernel_cache: Path
) -> None:
    (artifact / "users.parquet").unlink()
    with pytest.raises(LoadError, match=r"users\.parquet: there is no such file"):
        load_native(artifact, kernel_cache, lanes=1, max_batch_rows=2)
