"""The lean plan's layers: the same scores whoever multiplies, and who that is on which CPU."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from backends.dlrm.gather import DENSE, DENSE_ROWS, IDS
from backends.dlrm.manifest import MODEL_FILE
from backends.torch_dlrm import layers as of_layers
from backends.torch_dlrm.layers import (
    PACKED_ROWS,
    ROWS_MULTIPLE,
    Layers,
    PackedLayers,
    prefers_onednn,
)
from backends.torch_dlrm.lean import BLOCK_ROWS, Lean
from backends.torch_dlrm.lean_lane import LeanLane
from backends.torch_dlrm.options import BF16
from backends.torch_dlrm.recognise import recognise
from backends.torch_dlrm.weights import Dlrm, Layer
from backends.torchscript_file.reader import read_torchscript
from scheduler.types import Array

ROWS = (0, 1, PACKED_ROWS - 1, PACKED_ROWS, PACKED_ROWS + 1, 99, BLOCK_ROWS, 2 * BLOCK_ROWS + 71)


def drawn(widths: Sequence[int], seed: int = 0) -> list[Layer]:
    random = np.random.default_rng(seed)
    return [
        Layer(
            random.standard_normal((outputs, inputs), np.float32) / np.float32(inputs**0.5),
            random.standard_normal(outputs, np.float32) / np.float32(8),
        )
        for inputs, outputs in pairwise(widths)
    ]


@pytest.fixture(scope="module")
def large(small_artifact: Path) -> Dlrm:
    """The small artifact's tables below layers that are worth packing."""
    dlrm = recognise(read_torchscript(small_artifact / MODEL_FILE).root)
    wide = dlrm.over[0].weight.shape[1]
    dense = drawn((dlrm.dense_features, 512, 256, dlrm.tables.dim))
    return replace(dlrm, dense=tuple(dense), over=tuple(drawn((wide, 512, 512, 1), 1)))


def make_inputs(dlrm: Dlrm, rows: int) -> dict[str, Array]:
    random, features = np.random.default_rng(rows), dlrm.tables.features
    lengths = random.integers(0, 4, features * rows).astype(np.int32)
    return {
        DENSE: random.random((rows, dlrm.dense_features), np.float32),
        f"{IDS}.lengths": lengths,
        f"{IDS}.values": random.integers(0, dlrm.tables.rows.min(), lengths.sum()).astype(np.int32),
    }


def test_onednn_multiplies_what_is_large_and_scores_the_same(large: Dlrm) -> None:
    mkl, packed = (Lean(large, "scores", copy=False, onednn=one) for one in (False, True))
    assert not mkl.reorders
    assert packed.reorders
    for rows in ROWS:
        inputs = make_inputs(large, rows)
        ours, theirs = (LeanLane(one, 1).run(inputs)["scores"] for one in (packed, mkl))
        assert ours.shape == (rows,)
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=0, atol=1e-6)
        if rows < PACKED_ROWS:
            assert np.array_equal(np.asarray(ours), np.asarray(theirs))


@pytest.mark.parametrize("most", [3, 40, 290])
def test_rows_that_share_dense_values_score_as_those_that_do_not(large: Dlrm, most: int) -> None:
    lane = LeanLane(Lean(large, "scores", copy=False, onednn=True), 1)
    inputs = make_inputs(large, 300)
    own = np.sort(np.random.default_rng(1).integers(0, most, 300)).astype(np.int64)
    _, own = np.unique(own, return_inverse=True)
    few = inputs[DENSE][: own[-1] + 1]
    shared = lane.run({**inputs, DENSE: few, DENSE_ROWS: own})["scores"]
    apart = lane.run({**inputs, DENSE: few[own]})["scores"]
    np.testing.assert_allclose(np.asarray(shared), np.asarray(apart), rtol=0, atol=1e-6)


def test_what_is_no_number_is_none_by_onednn_either_and_stays_in_its_row(large: Dlrm) -> None:
    lane = LeanLane(Lean(large, "scores", copy=False, onednn=True), 1)
    for rows in (PACKED_ROWS, PACKED_ROWS + 3, BLOCK_ROWS + 9):
        inputs = make_inputs(large, rows)
        before = np.asarray(lane.run(inputs)["scores"])
        inputs[DENSE][3, 2] = np.nan
        after = np.asarray(lane.run(inputs)["scores"])
        assert np.flatnonzero(np.isnan(after)).tolist() == [3]
        assert np.array_equal(np.delete(after, 3), np.delete(before, 3))


def test_every_number_of_rows_that_onednn_makes_code_for_is_warmed_up(large: Dlrm) -> None:
    lean = Lean(large, "scores", copy=False, onednn=True)
    padded = {-(-rows // ROWS_MULTIPLE) * ROWS_MULTIPLE for rows in range(PACKED_ROWS, 129)}
    assert padded == set(lean.warmed_rows)
    assert max(padded) == BLOCK_ROWS
    assert not Lean(large, "scores", copy=False, onednn=False).warmed_rows


def test_small_layers_and_those_in_bf16_are_not_packed(large: Dlrm) -> None:
    small = replace(large, dense=tuple(drawn((large.dense_features, 64, large.tables.dim))))
    small = replace(small, over=tuple(drawn((large.over[0].weight.shape[1], 64, 1))))
    assert not Lean(small, "scores", copy=False, onednn=True).reorders
    lean = Lean(large, "scores", copy=False, onednn=True)
    lean.round_layers(large, BF16)
    assert not lean.reorders


def test_each_module_takes_its_own_of_all_packed_weights() -> None:
    values = torch.from_numpy(np.random.default_rng(0).random((100, 512), np.float32))
    plain = Layers(drawn((512, 256, 512)), last_is_linear=False)
    other = PackedLayers(Layers(drawn((256, 512)), last_is_linear=False), onednn=True)
    ours = PackedLayers(plain, onednn=True, before=1)
    assert len(other.pack()) == 1
    assert len(ours.pack()) == 2
    with torch.inference_mode():
        gap = (ours(values, [*other.pack(), *ours.pack()]) - plain(values)).abs().max()
    assert gap <= 2e-6


@pytest.mark.parametrize(
    ("facts", "capability", "expected"),
    [
        ("vendor_id\t: AuthenticAMD\n", "AVX512", True),
        ("vendor_id\t: AuthenticAMD\n", "AVX2", False),
        ("vendor_id\t: GenuineIntel\n", "AVX512", False),
        (None, "AVX512", False),
    ],
)
def test_onednn_multiplies_on_amd_cpus_with_avx512(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    facts: str | None,
    capability: str,
    *,
    expected: bool,
) -> None:
    if facts is not None:
        (tmp_path / "cpuinfo").write_text(facts)
    monkeypatch.setattr(of_layers, "_CPU_FACTS", tmp_path / "cpuinfo")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert prefers_onednn() is expected
