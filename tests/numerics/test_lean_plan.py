"""The lean plan scores as the artifact does, and whatever else would is not served."""

import logging
import pickle
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from backends.dlrm.gather import DENSE, IDS
from backends.dlrm.manifest import MODEL_FILE
from backends.torch_dlrm.answers import ANSWERS_FILE, Answers, read_answers, write_answers
from backends.torch_dlrm.export.golden import OUTPUT, Golden
from backends.torch_dlrm.export.quiet import quiet
from backends.torch_dlrm.lean import BLOCK_ROWS, Lean
from backends.torch_dlrm.probes import TOLERANCE, Forward, difference, doubt, make_probes
from backends.torch_dlrm.recognise import recognise
from backends.torch_dlrm.torchscript import load_module
from backends.torch_dlrm.weights import Dlrm, Layer, check_bounds
from backends.torchscript_file.reader import read_torchscript
from scheduler.errors import LoadError
from scheduler.types import Array, Batch
from tests.fixtures.artifacts import load, take_rows
from tests.numerics.test_bare_model import FLAGS, TwoColumns, save


@pytest.fixture(scope="module")
def dlrm(small_artifact: Path) -> Dlrm:
    """The weights of the artifact, as mapped."""
    return recognise(read_torchscript(small_artifact / MODEL_FILE).root)


@pytest.fixture(scope="module")
def answers(small_artifact: Path) -> Answers:
    """What the artifact answers to the probes, recorded at its export."""
    recorded = read_answers(small_artifact / ANSWERS_FILE)
    assert recorded is not None
    return recorded


def forward(dlrm: Dlrm) -> Forward:
    lean = Lean(dlrm, OUTPUT, copy=False)

    def run(inputs: dict[str, Array]) -> Array:
        with torch.inference_mode():
            tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
            scores: Array = lean(tensors)[OUTPUT].numpy()
        return scores

    return run


@pytest.mark.parametrize("tables", ["copy", "map"])
def test_an_exported_artifact_is_computed_by_the_lean_plan_and_scores_the_same(
    small_artifact: Path, golden: Golden, tables: str
) -> None:
    lean = load(small_artifact, plan="lean", tables=tables)
    plain = load(small_artifact, plan="artifact")
    assert lean.spec.properties["plan"] == "lean"
    assert "plan_reason" not in lean.spec.properties
    assert plain.spec.properties["plan"] == "artifact"
    assert replace(lean.spec, properties={}) == replace(plain.spec, properties={})
    for rows in (0, 1, 2, 33, 128):
        batch = Batch((take_rows(golden.request(), 0, rows),))
        ours, theirs = lean.prepare(batch)()[OUTPUT], plain.prepare(batch)()[OUTPUT]
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=0, atol=1e-6)


def test_the_probes_reach_past_one_block_and_into_empty_batches_and_bags(dlrm: Dlrm) -> None:
    probes = make_probes(dlrm)
    rows = {len(probe.inputs[DENSE]) for probe in probes}
    assert {0, 1, 2, 7} < rows
    assert max(rows) > 3 * BLOCK_ROWS
    lengths = np.concatenate([np.asarray(one.inputs[f"{IDS}.lengths"]) for one in probes])
    assert set(lengths.tolist()) == {0, 1, 2, 5, 40}
    assert any(not np.asarray(one.inputs[f"{IDS}.values"]).size for one in probes)


def test_nothing_speaks_against_the_right_weights(dlrm: Dlrm, answers: Answers) -> None:
    assert doubt(dlrm, forward(dlrm), make_probes(dlrm), answers.scores) == ""


def test_ids_of_64_bits_are_looked_up_too(dlrm: Dlrm, answers: Answers) -> None:
    wide = replace(dlrm, tables=replace(dlrm.tables, rows=dlrm.tables.rows + 2**33))
    inputs = make_probes(dlrm)[-3].inputs
    ids = np.asarray(inputs[f"{IDS}.values"]).astype(np.int64)
    scores = forward(wide)({**inputs, f"{IDS}.values": ids})
    assert difference(scores, answers.scores[-3]) <= TOLERANCE


def exchange_two_tables(dlrm: Dlrm) -> Dlrm:
    starts = dlrm.tables.starts.copy()
    starts[[3, 7]] = starts[[7, 3]]
    return replace(dlrm, tables=replace(dlrm.tables, starts=starts))


def shift_one_table_by_a_row(dlrm: Dlrm) -> Dlrm:
    starts = dlrm.tables.starts.copy()
    starts[0] += dlrm.tables.row_bytes(0)
    return replace(dlrm, tables=replace(dlrm.tables, starts=starts))


def average_the_bags(dlrm: Dlrm) -> Dlrm:
    return replace(dlrm, tables=replace(dlrm.tables, pooling=1))


def exchange_two_products(dlrm: Dlrm) -> Dlrm:
    pairs = dlrm.pairs.copy()
    pairs[:, [0, 1]] = pairs[:, [1, 0]]
    return replace(dlrm, pairs=pairs)


def forget_a_bias(dlrm: Dlrm) -> Dlrm:
    last = dlrm.over[-1]
    return replace(dlrm, over=(*dlrm.over[:-1], Layer(last.weight, last.bias * 0)))


@pytest.mark.parametrize(
    "fault",
    [
        exchange_two_tables,
        shift_one_table_by_a_row,
        average_the_bags,
        exchange_two_products,
        forget_a_bias,
    ],
)
def test_a_plan_that_computes_something_else_is_found_out(
    dlrm: Dlrm, answers: Answers, fault: Callable[[Dlrm], Dlrm]
) -> None:
    found = doubt(dlrm, forward(fault(dlrm)), make_probes(dlrm), answers.scores)
    assert "probe rows differ by" in found


def test_scores_that_no_table_moves_prove_nothing(dlrm: Dlrm) -> None:
    last = dlrm.over[-1]
    deaf = replace(dlrm, over=(*dlrm.over[:-1], Layer(last.weight * 0, last.bias)))
    probes, run = make_probes(deaf), forward(deaf)
    found = doubt(deaf, run, probes, [run(probe.inputs) for probe in probes])
    assert found == "no score depends visibly on feature 0: a wrong table could pass"


def test_tables_exported_into_a_gpu_s_memory_are_the_same_tables(
    small_artifact: Path, tmp_path: Path, dlrm: Dlrm
) -> None:
    module = load_module(small_artifact / MODEL_FILE, torch.device("cpu"))
    lookup = next(part for part in module.modules() if hasattr(part, "weights_host"))
    lookup.weights_dev, lookup.weights_host = lookup.weights_host, lookup.weights_dev
    lookup.weights_placements.zero_()  # type: ignore[operator]
    with quiet():
        module.save(tmp_path / MODEL_FILE)
    found = recognise(read_torchscript(tmp_path / MODEL_FILE).root)
    np.testing.assert_array_equal(found.tables.block, dlrm.tables.block)


@pytest.mark.parametrize("last", [0, 25])
def test_tables_that_end_after_their_bytes_are_refused(dlrm: Dlrm, last: int) -> None:
    longer = replace(dlrm.tables, rows=dlrm.tables.rows + 5 * np.eye(26, dtype=np.int64)[last])
    with pytest.raises(LoadError, match=f"feature {last} has 1005 rows up to byte"):
        check_bounds(longer)


def test_on_any_doubt_the_artifact_serves_and_says_why(
    small_artifact: Path, tmp_path: Path, answers: Answers, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shutil.copytree(small_artifact, tmp_path / "doubtful")
    wide = [scores.astype(np.float64) + 1e-5 for scores in answers.scores]
    others = tuple(scores.astype(np.float32) for scores in wide)
    write_answers(folder / ANSWERS_FILE, replace(answers, scores=others))
    with caplog.at_level(logging.WARNING):
        properties = load(folder, max_batch_rows=2).spec.properties
    assert properties["plan"] == "artifact"
    assert "probe rows differ by" in properties["plan_reason"]
    assert "no lean plan, served as it is: not proven to score" in caplog.text
    with pytest.raises(LoadError, match="--plan lean: not proven to score"):
        load(folder, plan="lean")


def test_what_is_no_dlrm_is_served_as_it_is(tmp_path: Path) -> None:
    path = save(TwoColumns(), tmp_path / "two.pt")
    properties = load(path, max_batch_rows=2, **FLAGS).spec.properties
    assert properties["plan"] == "artifact"
    assert properties["plan_reason"] == "it has 0 modules called dense_arch, not one"


def spoil_a_scale(module: torch.jit.ScriptModule) -> None:
    lookup = next(part for part in module.modules() if hasattr(part, "weights_host"))
    scales = lookup.weights_host.view(torch.float16)  # type: ignore[operator]
    # Rows of 4 + 16 bytes, the scale first.
    scales[(int(lookup.weights_offsets[2]) + 500 * 20) // 2] = torch.nan  # type: ignore[index]


def spoil_a_weight(module: torch.jit.ScriptModule) -> None:
    dict(module.named_parameters())["_module.over_arch.model.1.bias"].data[0] = torch.inf


@pytest.mark.parametrize("plan", ["auto", "artifact"])
@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (spoil_a_scale, "NaN or infinity in the table of feature 2, row 500"),
        (spoil_a_weight, "NaN or infinity in over_arch, layer 2"),
    ],
)
def test_weights_that_are_no_numbers_are_refused_before_ready(
    small_artifact: Path,
    tmp_path: Path,
    plan: str,
    spoil: Callable[[torch.jit.ScriptModule], None],
    complaint: str,
) -> None:
    module = load_module(small_artifact / MODEL_FILE, torch.device("cpu"))
    spoil(module)
    with quiet():
        module.save(tmp_path / MODEL_FILE)
    with pytest.raises(LoadError, match=complaint):
        load(tmp_path / MODEL_FILE, plan=plan)


@pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
def test_a_truncated_file_is_refused_before_ready(
    small_artifact: Path, tmp_path: Path, share: float
) -> None:
    data = (small_artifact / MODEL_FILE).read_bytes()
    (tmp_path / MODEL_FILE).write_bytes(data[: int(len(data) * share)])
    with pytest.raises(LoadError, match="is no TorchScript file: File is not a zip"):
        load(tmp_path / MODEL_FILE)


class Touch:
    """Unpickled, it makes the file at ``path``: what an attacker would do."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self._path,)


def test_a_pickle_that_would_run_code_runs_none(small_artifact: Path, tmp_path: Path) -> None:
    mark, path = tmp_path / "mark", tmp_path / MODEL_FILE
    with zipfile.ZipFile(small_artifact / MODEL_FILE) as old, zipfile.ZipFile(path, "w") as new:
        for info in old.infolist():
            data = old.read(info)
            if info.filename.endswith(("/data.pkl", "/constants.pkl")):
                data = pickle.dumps(Touch(mark), protocol=2)
            new.writestr(info.filename, data)
    with pytest.raises(LoadError, match="is no TorchScript model this build loads"):
        load(path)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Touch(mark), protocol=2))
    assert mark.exists()


def test_answers_stand_for_one_file_the_same_probes_and_the_same_libraries(
    dlrm: Dlrm, answers: Answers
) -> None:
    probes, sha256, libraries = make_probes(dlrm), answers.sha256, answers.libraries
    assert answers.fits(sha256, probes, libraries)
    assert not answers.fits("0" * 64, probes, libraries)
    assert not answers.fits(sha256, probes, "torch 1.0")
    assert not answers.fits(sha256, probes[:-1], libraries)


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\3\4 cut off"])
def test_answers_that_cannot_be_read_are_none(tmp_path: Path, content: bytes) -> None:
    assert read_answers(tmp_path / "absent.npz") is None
    (tmp_path / ANSWERS_FILE).write_bytes(content)
    assert read_answers(tmp_path / ANSWERS_FILE) is None


def test_a_plan_that_is_dropped_gives_its_memory_back(dlrm: Dlrm) -> None:
    tables = replace(dlrm.tables, block=np.ones(64 << 20, np.uint8))
    heavy = replace(dlrm, tables=tables)

    def anonymous_bytes() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

    Lean(heavy, OUTPUT, copy=True)
    before = anonymous_bytes()
    for _ in range(3):
        Lean(heavy, OUTPUT, copy=True)
    assert anonymous_bytes() < before + (64 << 20)
