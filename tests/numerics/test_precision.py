"""Tables in FP32, FP16, INT8 and INT4: exported, and the same scores by every backend."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from backends.dlrm.manifest import MODEL_FILE, read_manifest
from backends.native_dlrm.convert import convert
from backends.torch_dlrm.export.check import check_artifact
from backends.torch_dlrm.export.golden import OUTPUT, Golden, read_golden
from backends.torch_dlrm.export.presets import PRESETS, DlrmShape
from backends.torch_dlrm.export.quiet import quiet
from scheduler.backend import Backend
from scheduler.errors import LoadError
from scheduler.types import Batch
from tests.fixtures.artifacts import load
from tests.fixtures.native import load_native, plans
from tests.fixtures.onnx import load_onnx

TOLERANCE = 1e-6
# Largest difference from the FP32 model's scores, whose deviation is 0.2.
ERRORS = {"fp32": 1e-6, "fp16": 1e-3, "int8": 1e-2, "int4": 0.15}
KINDS = [
    pytest.param("fp16"),
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("fp32", "int8", "int4")),
]
TINY = DlrmShape(("a", "b", "c"), (7, 50, 20), 8, ("x", "y"), (16, 8), (16, 8, 1))


def export(folder: Path, shape: DlrmShape, **order: str) -> Path:
    with quiet():
        from backends.torch_dlrm.export.write import Order, export  # noqa: PLC0415

        export(Order(folder, shape, name="model", **order), lambda text: None)  # type: ignore[arg-type]
    return folder


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def artifact(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of tables of ``kind``; the one in the default run is tiny."""
    shape = TINY if kind == "fp16" else PRESETS["small"]
    return export(tmp_path_factory.mktemp(kind) / "model", shape, tables=kind)


def assert_golden(backend: Backend, golden: Golden) -> None:
    request = replace(golden.request(), inputs=dict(golden.inputs))
    backend.check(request)
    scores = backend.prepare(Batch((request,)))()[OUTPUT].astype(np.float64)
    expected = np.asarray(golden.served[OUTPUT], np.float64)
    assert expected.std() >= 0.05
    assert np.abs(scores - expected).max() <= TOLERANCE


def test_an_export_says_its_precision_and_its_scores_are_near_fp32(
    artifact: Path, kind: str
) -> None:
    assert read_manifest(artifact).dtypes["tables"] == kind
    report = check_artifact(artifact)
    assert report.passed
    assert report.quantisation <= ERRORS[kind]
    if kind != "fp32":
        assert report.quantisation > 0


def test_every_plan_of_torch_dlrm_scores_as_the_export(artifact: Path, kernel_cache: Path) -> None:
    for plan in plans(kernel_cache):
        backend = load(artifact, plan=plan, cache_dir=str(kernel_cache))
        assert backend.spec.properties["plan"] == plan
        assert_golden(backend, read_golden(artifact))


@pytest.mark.parametrize("kernel", ["auto", "numba"])
def test_native_dlrm_scores_as_the_export(
    artifact: Path, kernel_cache: Path, kernel: str, tmp_path: Path
) -> None:
    convert(str(artifact), tmp_path / "converted")
    for path in (artifact / MODEL_FILE, tmp_path / "converted"):
        assert_golden(load_native(path, kernel_cache, kernel=kernel), read_golden(artifact))


def test_an_onnx_file_scores_as_the_export(artifact: Path, tmp_path: Path) -> None:
    from backends.onnx_dlrm.export.write import export as export_onnx  # noqa: PLC0415

    export_onnx(artifact, tmp_path / "onnx")
    assert_golden(load_onnx(tmp_path / "onnx"), read_golden(artifact))


@pytest.mark.slow
def test_a_torch_export_program_scores_as_the_export(kind: str, tmp_path: Path) -> None:
    folder = export(tmp_path / "program", TINY, tables=kind, format="pt2")
    assert check_artifact(folder).passed
    assert load(folder, plan="lean").spec.properties["plan"] == "lean"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An AOTInductor package; compiling it takes a minute."""
    return export(tmp_path_factory.mktemp("aoti") / "model", TINY, format="aoti")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_compiled_program_runs_on_one_lane_where_it_is_asked_for(compiled: Path) -> None:
    backend = load(compiled, plan="artifact")
    assert backend.lanes == 1
    assert_golden(backend, read_golden(compiled))
    assert check_artifact(compiled).passed


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "machine code that would run .* --plan artifact serves it"),
        ({"plan": "lean"}, "--plan lean: an AOTInductor package has its weights in machine code"),
        ({"plan": "artifact", "lanes": 2}, "--lanes 2: an AOTInductor package holds Python's lock"),
    ],
)
def test_a_compiled_program_is_refused_otherwise(
    compiled: Path, options: dict[str, object], complaint: str
) -> None:
    with pytest.raises(LoadError, match=complaint):
        load(compiled, **options)


@pytest.mark.parametrize("plan", ["auto", "artifact"])
def test_a_file_that_is_no_program_is_told_as_one(tmp_path: Path, plan: str) -> None:
    (tmp_path / "model.pt2").write_bytes(b"no program" * 100)
    with pytest.raises(LoadError, match=r"model\.pt2 is no torch\.export program"):
        load(tmp_path / "model.pt2", plan=plan)
