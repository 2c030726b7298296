import dataclasses
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from backends.dlrm.artifact import Artifact, find_artifact
from backends.dlrm.manifest import read_manifest, write_manifest
from backends.torch_dlrm.artifact import Derived, settle
from backends.torch_dlrm.options import TorchDlrmOptions
from scheduler.errors import LoadError

BARE = Artifact(Path("somewhere/ranker.pt"), "", None)
DERIVED = Derived(("cat_0", "cat_1"), (10, 20), 13, "cpu")
NOTHING = Derived((), (), 0, "")
FLAGS: dict[str, Any] = {
    "feature_names": ("a", "b"),
    "table_rows": (3, 4),
    "dense_features": 2,
}


@pytest.fixture
def folder(small_artifact: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_artifact, tmp_path / "copy"))


def test_a_manifest_survives_being_written_and_read(folder: Path) -> None:
    manifest = dataclasses.replace(read_manifest(folder), name="other", over_layers=(7, 1))
    write_manifest(folder, manifest)
    assert read_manifest(folder) == manifest


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"format": 2}, "format is 2, this version reads 1"),
        ({"tables": [{"feature": "a"}]}, "not a manifest of this version"),
        ({"tables": None}, "not a manifest of this version"),
    ],
)
def test_a_strange_manifest_is_refused(
    folder: Path, change: dict[str, object], complaint: str
) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(LoadError, match=complaint):
        find_artifact(str(folder))


def test_a_manifest_that_lacks_something_is_refused_by_its_name(folder: Path) -> None:
    path = folder / "manifest.json"
    document = json.loads(path.read_text())
    del document["sha256"]
    path.write_text(json.dumps(document))
    with pytest.raises(LoadError, match="lacks 'sha256'"):
        find_artifact(str(folder))


def test_a_model_file_other_than_the_manifests_is_refused(folder: Path) -> None:
    with (folder / "model.pt").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(LoadError, match="damaged or was replaced"):
        find_artifact(str(folder))


def test_a_file_that_takes_the_place_of_the_hashed_one_is_refused(folder: Path) -> None:
    artifact = find_artifact(str(folder))
    artifact.check_unchanged()
    shutil.copy(folder / "model.pt", folder / "new")
    (folder / "new").replace(folder / "model.pt")
    with pytest.raises(LoadError, match="was replaced while it was loaded"):
        artifact.check_unchanged()


def test_a_folder_without_a_manifest_says_how_to_serve_a_bare_file(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="pass the path of the model file itself"):
        find_artifact(str(tmp_path))


@pytest.mark.parametrize("path", ["", "no/such/folder"])
def test_a_missing_artifact_is_a_load_error(path: str) -> None:
    with pytest.raises(LoadError, match=r"no model|narsil export"):
        find_artifact(path)


def test_a_bare_file_is_described_by_itself() -> None:
    facts = settle(TorchDlrmOptions(), BARE, DERIVED)
    assert (facts.name, facts.version, facts.dense_features) == ("ranker", "1", 13)
    assert facts.layout.features == ("cat_0", "cat_1")
    assert facts.layout.table_rows.tolist() == [10, 20]


def test_flags_describe_a_file_that_tells_nothing() -> None:
    facts = settle(TorchDlrmOptions(name="n", version="7", **FLAGS), BARE, NOTHING)
    assert (facts.name, facts.version, facts.dense_features) == ("n", "7", 2)
    assert facts.layout.features == ("a", "b")
    assert facts.layout.table_rows.tolist() == [3, 4]


@pytest.mark.parametrize("flag", sorted(FLAGS))
def test_a_missing_fact_names_the_flag_that_gives_it(flag: str) -> None:
    options = TorchDlrmOptions(**{name: value for name, value in FLAGS.items() if name != flag})
    with pytest.raises(LoadError, match="give --" + flag.replace("_", "-")):
        settle(options, BARE, NOTHING)


@pytest.mark.parametrize(
    ("flags", "derived", "complaint"),
    [
        ({"feature_names": ("cat_1", "cat_0")}, DERIVED, "the order cat_1, cat_0 is not"),
        (
            {"table_rows": (10, 21)},
            DERIVED,
            "the manifest or --table-rows: 'cat_1' has 20 .*, not 21",
        ),
        ({"dense_features": 12}, DERIVED, "the manifest or --dense-features: 12 given"),
        (
            {"feature_names": ("a",), "table_rows": (10,)},
            DERIVED,
            "the manifest or --feature-names: 1 given",
        ),
        ({**FLAGS, "table_rows": (3,)}, NOTHING, "names 2 features, --table-rows 1"),
    ],
)
def test_flags_that_contradict_the_file_are_refused(
    flags: dict[str, Any], derived: Derived, complaint: str
) -> None:
    with pytest.raises(LoadError, match=complaint):
        settle(TorchDlrmOptions(**flags), BARE, derived)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"max_batch_rows": 0}, "max_batch_rows must be at least 1, got 0"),
        ({"lanes": -3}, "lanes must be at least 0, got -3"),
        ({"intra_op_threads": -1}, "intra_op_threads must be at least 0, got -1"),
        ({"plan": "leann"}, "plan must be one of auto, fused, lean, artifact, got 'leann'"),
        ({"tables": "borrow"}, "tables must be one of copy, map, uvm, got 'borrow'"),
    ],
)
def test_an_option_out_of_range_is_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        TorchDlrmOptions(**options)


def test_the_plug_in_is_imported_without_pytorch() -> None:
    code = (
        "import sys, backends.torch_dlrm.backend, backends.torch_dlrm.export.command;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("name", ["x"], "('x',) is not a name"),
        ("version", 7, "7 is not a name"),
        ("tables", [{"feature": 5, "rows": 10, "dim": 4}], "5 is not a name"),
        ("tables", [{"feature": "a", "rows": "10", "dim": 4}], "rows of 'a' are '10'"),
        ("tables", [{"feature": "a", "rows": 0, "dim": 4}], "rows of 'a' are 0"),
        ("tables", [{"feature": "a", "rows": 9, "dim": 4}] * 2, "the same feature"),
        ("outputs", [None], "outputs: None is not a name"),
        ("outputs", 3, "outputs is 3, not a list"),
        ("dense_names", "abc", "dense_names is 'abc', not a list"),
        ("tables", {"a": 1}, "tables is {'a': 1}, not a list"),
        ("tables", ["a"], "tables[0] is 'a', not an object"),
        ("tables", [{"feature": "a", "rows": 9}], "tables[0] lacks 'dim'"),
        ("tables", [{"feature": "a", "rows": 9, "dim": 4, "x": 1}], "tables[0] has 'x'"),
    ],
)
def test_a_manifest_with_values_of_the_wrong_kind_is_refused_by_value(
    small_artifact: Path, tmp_path: Path, key: str, value: object, named: str
) -> None:
    document = json.loads((small_artifact / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps({**document, key: value}))
    with pytest.raises(LoadError, match=re.escape(named)):
        read_manifest(tmp_path)


def test_a_manifest_that_is_no_object_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(LoadError, match="it is no JSON object"):
        read_manifest(tmp_path)
