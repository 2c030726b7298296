"""What cannot be served is refused before it is ready, with what is wrong and where."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.dlrm.artifact import find_artifact
from backends.dlrm.forward.model import Dlrm
from backends.dlrm.kinds import TENSORS_FILE
from backends.dlrm.manifest import MANIFEST_FILE, MODEL_FILE, PROGRAM_FILE, file_sha256
from backends.native_dlrm.convert import convert
from backends.native_dlrm.graph import read_forward
from backends.native_dlrm.options import NativeDlrmOptions
from backends.native_dlrm.recognise import recognise
from backends.native_dlrm.source import find_source
from backends.torch_dlrm.export.golden import OUTPUT, golden_inputs
from backends.torch_dlrm.export.presets import PRESETS
from backends.torchscript_file.reader import read_torchscript
from backends.torchscript_file.tree import TorchScriptFile
from scheduler.backend import TableRows
from scheduler.errors import LoadError
from scheduler.types import Batch, InferRequest
from tests.fixtures.native import load_native

Document = dict[str, Any]
SMALL = PRESETS["small"]


@pytest.fixture(scope="module")
def converted(small_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A conversion to copy from."""
    folder = tmp_path_factory.mktemp("converted") / "small"
    convert(str(small_artifact), folder)
    return folder


@pytest.fixture
def folder(converted: Path, tmp_path: Path) -> Path:
    """A conversion to spoil."""
    return Path(shutil.copytree(converted, tmp_path / "model"))


def edit(folder: Path, change: Callable[[Document], object]) -> None:
    document = json.loads((folder / MANIFEST_FILE).read_text())
    change(document)
    (folder / MANIFEST_FILE).write_text(json.dumps(document))


def resign(folder: Path) -> None:
    checksum = file_sha256(folder / TENSORS_FILE)
    edit(folder, lambda document: document.update(sha256=checksum))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda d: d.update(format=2), "kind 'native_dlrm', format 2; this version reads"),
        (lambda d: d.update(kind="other"), "kind 'other'"),
        (lambda d: d.pop("output"), "not a manifest of this version: output is missing"),
        (lambda d: d.update(more=1), "not a manifest of this version: more is not known"),
        (lambda d: d.update(sigmoid="false"), "sigmoid must be true or false, not 'false'"),
        (lambda d: d.update(over_relu=["false"] * 3), r"over_relu\[0\] must be true or false"),
        (lambda d: d.update(dense_relu=5), "dense_relu must be a list, not 5"),
        (lambda d: d.update(interacted={}), "interacted must be a list, not an object"),
        (lambda d: d.update(interacted=[0.0]), r"interacted\[0\] must be a whole number, not 0\.0"),
        (lambda d: d.update(name=5), "name must be a text, not 5"),
        (lambda d: d.update(output=""), "output or feature is empty"),
        (lambda d: d.update(tables=[1]), r"tables\[0\] must be an object, not 1"),
        (lambda d: d["tables"][1].update(mean="no"), r"tables\[1\].mean must be true or false"),
        (lambda d: d["tables"][1].update(dim="8"), r"tables\[1\].dim must be a whole number"),
        (lambda d: d["tables"][1].update(dim=16.0), r"dim must be a whole number, not 16\.0"),
        (lambda d: d["tables"][1].update(dim=0), r"tables\[1\].dim must be 1 to"),
        (lambda d: d["tables"][1].update(feature="cat_0"), "two tables have the same feature"),
        (lambda d: d.update(interacted=[0]), "interacted is no order of the tables"),
        (lambda d: d.update(sha256="0"), "has SHA-256 .*, the manifest says 0: .*convert it again"),
        (lambda d: d["tables"][1].update(rows=7), "'cat_1' has 1000 rows, the manifest says 7"),
        (lambda d: d["tables"][1].update(feature="x"), "lacks 'tables.x'"),
        (lambda d: d["tables"][1].update(kind="int3"), r"tables\[1\].kind must be one of int8"),
        (lambda d: d["tables"][1].update(kind="fp32"), "a row of 64 bytes has only 20"),
        (
            lambda d: d["tables"][1].update(dim=8),
            "'cat_1' is 8 wide, the dense vector 16",
        ),
        (lambda d: d["dense_relu"].pop(), "tensors that the manifest does not know: dense.2"),
        (lambda d: d.update(over_relu=[]), "no over layers"),
    ],
)
def test_a_manifest_that_disagrees_with_the_tensors_is_refused(
    folder: Path, kernel_cache: Path, change: Callable[[Document], object], complaint: str
) -> None:
    edit(folder, change)
    with pytest.raises(LoadError, match=complaint):
        load_native(folder, kernel_cache)


def test_a_manifest_that_is_nested_without_end_is_refused(folder: Path) -> None:
    (folder / MANIFEST_FILE).write_text("[" * 100_000)
    with pytest.raises(LoadError, match=r"manifest\.json is nested too deeply"):
        find_source(str(folder), verify=False)


def test_what_is_converted_may_be_read_by_whom_the_umask_lets(folder: Path) -> None:
    modes = {path.stat().st_mode for path in (folder / TENSORS_FILE, folder / MANIFEST_FILE)}
    assert len(modes) == 1


def test_a_file_of_another_length_than_it_claims_is_refused(
    folder: Path, kernel_cache: Path
) -> None:
    path = folder / TENSORS_FILE
    whole = path.read_bytes()
    for data in (whole[:-1], whole[:100], whole[:4], b"", whole + b"x", b"\xff" * 9 + whole[9:]):
        path.write_bytes(data)
        with pytest.raises(LoadError, match="no sound safetensors file"):
            load_native(folder, kernel_cache, verify=False)


def test_a_changed_byte_is_found_by_the_checksum(folder: Path, kernel_cache: Path) -> None:
    path = folder / TENSORS_FILE
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(LoadError, match="has SHA-256"):
        load_native(folder, kernel_cache)


@pytest.mark.parametrize(
    ("tensor", "complaint"),
    [
        ("tables.cat_3", "table 'cat_3': row 0 is not finite"),
        ("dense.1.weight", "dense layer 1 has weights that are not finite"),
    ],
)
def test_a_weight_that_is_no_number_is_refused(
    folder: Path, kernel_cache: Path, tensor: str, complaint: str
) -> None:
    path = folder / TENSORS_FILE
    data = bytearray(path.read_bytes())
    header = int.from_bytes(data[:8], "little")
    start = 8 + header + json.loads(data[8 : 8 + header])[tensor]["data_offsets"][0]
    dtype = np.float16 if tensor.startswith("tables") else np.float32
    data[start : start + 4] = np.full(4, np.nan, dtype).tobytes()[:4]
    path.write_bytes(data)
    resign(folder)
    with pytest.raises(LoadError, match=complaint):
        load_native(folder, kernel_cache)


FORWARD = "__torch__/torch/fx/graph_module.py"


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("torch.sigmoid(", "torch.tanh(", "linear layers are missing"),
        ("torch.relu(", "torch.gelu(", "ReLU|dense layers do not start|linear layers"),
        ("torch.bmm(", "torch.matmul(", "not that of every pair"),
        ("torch.transpose(cat_1, 1, 2)", "torch.transpose(cat_1, 2, 1)", "not that of every pair"),
        ('"float_features"', '"floats"', "do not start at 'float_features'"),
        ('["cat_0", "cat_1",', '["cat_1", "cat_0",', "in another order|not every id feature"),
        ('to_dict["cat_7"]', "to_dict", "taken from somewhere else"),
        ("    relu = ", "    if True:\n      pass\n    relu = ", "branches, loops"),
        ("class GraphModule", "class Other", "no code of"),
        ("def forward", "def backward", "no code of"),
        ("def forward(", "def forward((", "cannot be parsed"),
        ("torch.to(to_2, 6)", "torch.to(to_2, 5)", "linear layers are missing"),
        ("(values, type_1, None, )", "(values, type_1, values, )", "other than ids"),
        ("(to).values()", "(keyed_jagged_tensor).values()", "other than ids"),
        ("split([26], )", "split([25], )", "is given 25|in another order"),
    ],
)
def test_a_forward_that_computes_anything_else_is_refused(
    small_artifact: Path, old: str, new: str, complaint: str
) -> None:
    file = read_torchscript(small_artifact / MODEL_FILE)
    text = file.code[FORWARD]
    assert old in text
    # Only the first of several equal layers, but every use of a list of names after the first.
    changed = {**file.code, FORWARD: text.replace(old, new, 1)}
    with pytest.raises(LoadError, match=complaint):
        recognise(TorchScriptFile(file.root, file.storage, changed, file.version))


def test_a_model_that_is_not_known_is_named_with_the_backend_that_runs_it(
    small_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backends.native_dlrm.keys._IDS", "__torch__.other.Ids")
    for path in (small_artifact / MODEL_FILE, small_artifact):
        with pytest.raises(LoadError, match=r"model\.pt: .* makes 0 Keyed.*--backend torch_dlrm"):
            find_source(str(path), verify=True)


def test_a_class_without_code_has_no_forward() -> None:
    with pytest.raises(LoadError, match=r"no code of __torch__\.a\.Net"):
        read_forward({}, "__torch__.a.Net")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"max_batch_rows": 0}, "max_batch_rows must be at least 1, got 0"),
        ({"lanes": -1}, "lanes must be at least 0, got -1"),
        ({"kernel": "fortran"}, "kernel must be one of auto, compiled, numba, got 'fortran'"),
    ],
)
def test_an_option_out_of_range_is_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        NativeDlrmOptions(**options)


def test_a_program_of_torch_export_names_the_backend_that_serves_it(
    small_artifact: Path, tmp_path: Path
) -> None:
    shutil.copy(small_artifact / MANIFEST_FILE, tmp_path)
    (tmp_path / PROGRAM_FILE).touch()
    for path in (tmp_path, tmp_path / PROGRAM_FILE):
        with pytest.raises(LoadError, match=r"model\.pt2 is a .*--backend torch_dlrm"):
            find_source(str(path), verify=True)


def test_a_conversion_names_the_backend_that_serves_it(folder: Path) -> None:
    with pytest.raises(LoadError, match=r"is of narsil convert: .*--backend native_dlrm"):
        find_artifact(str(folder))


def test_a_path_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="no model: give the path"):
        find_source("", verify=True)
    with pytest.raises(LoadError, match=r"absent\.pt does not exist; make one with: narsil export"):
        find_source(str(tmp_path / "absent.pt"), verify=True)


@pytest.mark.parametrize("form", ["artifact", "converted", "bare"])
def test_a_copied_model_serves_on_whatever_becomes_of_its_file(
    small_artifact: Path, folder: Path, tmp_path: Path, kernel_cache: Path, form: str
) -> None:
    served = {
        "artifact": Path(shutil.copytree(small_artifact, tmp_path / "artifact")),
        "converted": folder,
        "bare": Path(shutil.copy(small_artifact / MODEL_FILE, tmp_path / MODEL_FILE)),
    }[form]
    backend = load_native(served, kernel_cache, lanes=1, tables="copy")
    mapped = load_native(small_artifact, kernel_cache, lanes=1)
    file = served if form == "bare" else served / {"artifact": MODEL_FILE}.get(form, TENSORS_FILE)
    os.truncate(file, 0)  # mapped, the process would end at its next look into a table
    inputs = golden_inputs(SMALL, 16, seed=3)
    batch = Batch((InferRequest("", 16, inputs),))
    scores = backend.prepare(batch)()[OUTPUT]
    assert np.array_equal(scores, mapped.prepare(batch)()[OUTPUT])
    assert backend.spec.properties["tables"] == "copy"
    rows = TableRows(backend.update_tables()[0].name, np.arange(5), np.ones((5, SMALL.dim), "f4"))
    backend.prepare_update([rows])()
    assert backend.roll_back() == 5
    assert np.array_equal(backend.prepare(batch)()[OUTPUT], scores)


@pytest.mark.parametrize("copy", [False, True])
def test_a_file_that_is_written_to_while_it_is_loaded_is_refused(
    small_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copy: bool
) -> None:
    served = Path(shutil.copytree(small_artifact, tmp_path / "artifact"))

    def slowly(file: TorchScriptFile) -> Dlrm:
        with (served / MODEL_FILE).open("ab") as more:
            more.write(b"more")
        return recognise(file)

    monkeypatch.setattr("backends.native_dlrm.source.recognise", slowly)
    with pytest.raises(LoadError, match="was written to while it was loaded; write beside"):
        find_source(str(served), verify=True, copy=copy)
