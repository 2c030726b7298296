"""The golden check passes a right artifact and fails each kind of wrong one."""

import dataclasses
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from backends.dlrm.gather import DENSE
from backends.dlrm.manifest import MODEL_FILE, file_sha256, read_manifest, write_manifest
from backends.torch_dlrm.export.check import TOLERANCE, check_artifact, compare
from backends.torch_dlrm.export.command import main
from backends.torch_dlrm.export.golden import (
    LENGTHS,
    OUTPUT,
    VALUES,
    Golden,
    read_golden,
    write_golden,
)
from backends.torch_dlrm.export.quiet import quiet
from backends.torch_dlrm.torchscript import load_module
from scheduler.errors import LoadError
from scheduler.types import Array

Inputs = dict[str, Array]
# A fault must stand out from rounding by orders of magnitude, not by luck.
VISIBLE = 1000 * TOLERANCE


@pytest.fixture
def folder(small_artifact: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_artifact, tmp_path / "copy"))


def per_feature(inputs: Inputs) -> list[Array]:
    return np.split(inputs[VALUES], np.cumsum(inputs[LENGTHS].sum(axis=1))[:-1])


def swap_two_features(inputs: Inputs) -> Inputs:
    order = [1, 0, *range(2, 26)]
    ids = per_feature(inputs)
    return {
        **inputs,
        LENGTHS: inputs[LENGTHS][order],
        VALUES: np.concatenate([ids[feature] for feature in order]),
    }


def shift_every_id(inputs: Inputs) -> Inputs:
    return {**inputs, VALUES: (inputs[VALUES].astype(np.int64) + 1) % 1000}


def shift_the_ids_of_one_feature(inputs: Inputs) -> Inputs:
    ids = per_feature(inputs)
    ids[25] = (ids[25].astype(np.int64) + 1) % 1000
    return {**inputs, VALUES: np.concatenate(ids)}


def swap_two_dense_columns(inputs: Inputs) -> Inputs:
    return {**inputs, DENSE: inputs[DENSE][:, [1, 0, *range(2, 13)]]}


def read_lengths_row_by_row(inputs: Inputs) -> Inputs:
    return {**inputs, LENGTHS: inputs[LENGTHS].T.reshape(26, -1)}


def test_an_untouched_artifact_passes(small_artifact: Path) -> None:
    report = check_artifact(small_artifact)
    assert report.passed
    assert report.rows == 128
    assert report.score_std >= 0.05
    assert 0 < report.quantisation < 0.02


@pytest.mark.parametrize(
    "fault",
    [
        swap_two_features,
        shift_every_id,
        shift_the_ids_of_one_feature,
        swap_two_dense_columns,
        read_lengths_row_by_row,
    ],
)
def test_inputs_in_the_wrong_place_are_caught(
    folder: Path, fault: Callable[[Inputs], Inputs]
) -> None:
    golden = read_golden(folder)
    write_golden(folder, dataclasses.replace(golden, inputs=fault(dict(golden.inputs))))
    report = check_artifact(folder)
    assert not report.passed
    assert report.difference > VISIBLE


def zero_all_tables(module: torch.jit.ScriptModule) -> None:
    tables(module).zero_()


def zero_one_table(module: torch.jit.ScriptModule) -> None:
    tables(module)[: 1000 * (16 + 4)].zero_()


def forget_a_bias(module: torch.jit.ScriptModule) -> None:
    with torch.no_grad():
        dict(module.named_parameters())["_module.over_arch.model.1.bias"].zero_()


def tables(module: torch.jit.ScriptModule) -> torch.Tensor:
    lookup = next(part for part in module.modules() if hasattr(part, "weights_host"))
    assert isinstance(lookup.weights_host, torch.Tensor)
    return lookup.weights_host


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(zero_all_tables, marks=pytest.mark.slow),
        zero_one_table,
        pytest.param(forget_a_bias, marks=pytest.mark.slow),
    ],
)
def test_wrong_weights_are_caught(
    folder: Path, fault: Callable[[torch.jit.ScriptModule], None]
) -> None:
    module = load_module(folder / MODEL_FILE, torch.device("cpu"))
    fault(module)
    with quiet():
        module.save(folder / MODEL_FILE)
    sha256 = file_sha256(folder / MODEL_FILE)
    write_manifest(folder, dataclasses.replace(read_manifest(folder), sha256=sha256))
    report = check_artifact(folder)
    assert not report.passed
    assert report.difference > VISIBLE


def test_scores_that_are_no_numbers_do_not_pass(golden: Golden) -> None:
    scores = golden.served[OUTPUT].copy()
    scores[0] = np.nan
    assert not compare(golden, {OUTPUT: scores}).passed


def test_an_artifact_without_a_golden_batch_cannot_be_checked(folder: Path) -> None:
    (folder / "golden.npz").unlink()
    with pytest.raises(LoadError, match="cannot read the golden batch"):
        check_artifact(folder)


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def _empty(file: Path) -> None:
    file.write_bytes(b"")


def _lone_array(file: Path) -> None:
    with file.open("wb") as opened:
        np.save(opened, np.zeros(3))


def _with(**changes: Array | None) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        with np.load(file) as arrays:
            kept = {name.replace(".", "_"): (name, arrays[name]) for name in arrays}
        named = {name: changes.get(key, array) for key, (name, array) in kept.items()}
        np.savez(file, allow_pickle=True, **{n: a for n, a in named.items() if a is not None})

    return change


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_cut, "cannot read the golden batch"),
        (_empty, "cannot read the golden batch"),
        (_lone_array, "cannot read the golden batch"),
        (_with(served_default=None), r"it has served scores of \[\]"),
        (
            _with(served_default=np.zeros(127, np.float32)),
            r"float32 of shape \[127\], for 128 rows",
        ),
        (_with(fp32_default=np.zeros(128, "U3")), r"<U3 of shape \[128\]"),
        (_with(float_features=np.array(1, np.float32)), "float_features has no rows"),
        (_with(float_features=np.zeros((128, 2), np.float32)), "is no request for this model"),
    ],
    ids=["cut", "empty", "no npz", "no scores", "short", "text", "no rows", "narrow"],
)
def test_a_golden_batch_that_is_damaged_is_told_in_a_sentence(
    folder: Path, damage: Callable[[Path], None], said: str
) -> None:
    damage(folder / "golden.npz")
    with pytest.raises(LoadError, match=said):
        check_artifact(folder)


def test_the_command_reports_the_largest_difference(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--check", str(folder)]) == 0
    printed = capsys.readouterr().err
    assert printed.startswith("passed: 128 golden rows")
    found = re.search(
        r"largest difference from the golden scores +(\S+) \(at most 1e-06\)", printed
    )
    assert found, printed
    assert 0 <= float(found[1]) <= 1e-6


def test_the_command_fails_for_a_wrong_artifact(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    golden = read_golden(folder)
    write_golden(folder, dataclasses.replace(golden, inputs=shift_every_id(dict(golden.inputs))))
    assert main([str(folder), "--check"]) == 1
    assert capsys.readouterr().err.startswith("FAILED: 128 golden rows")
