"""The C kernel against float64, its choice, and what happens where it cannot be had."""

import ctypes
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from backends.compiled import build
from backends.compiled.build import NoKernelError
from backends.dlrm.forward.compiled import CompiledForward, CompiledWeights, Kernel
from backends.dlrm.forward.compiler import load_library
from backends.dlrm.forward.model import Kind
from backends.dlrm.forward.triples import as_triples, side_by_side
from backends.dlrm.gather import DENSE, FEW_IDS, IDS, PATTERN_OF_ROW, PATTERNS
from scheduler.types import Array
from tests.fixtures.random_dlrm import RandomDlrm, Shape, make_dlrm, make_inputs

KINDS: tuple[Kind, ...] = get_args(Kind)
SHAPES = [
    *(Shape((kind,) * 3, dim) for kind in KINDS for dim in (1, 6, 16, 33)),
    *(Shape((kind,) * 3, 20, mean=True, padding=12) for kind in KINDS),
    Shape(("int8",), 64, dense=(), over=()),
    Shape(("int8", "fp16", "fp32", "int4", "fp32"), 27, dense=(48, 31), over=(70, 17), padding=3),
    Shape(("int8",) * 26, 64, features=13, dense=(128, 65), over=(96, 64)),
    Shape(("int8",) * 3, 16, dense=(160,), over=(200, 33)),
    # Four panels, the last of them not full: 49 to 64 outputs of AVX2, 97 to 128 of AVX-512.
    Shape(("int8",) * 3, 33, dense=(49, 97), over=(63, 127)),
    Shape(("fp32",) * 2, 8, sigmoid=False),
]

# Every height of a tile, and more than a block of them.
ROWS = (0, *range(1, 15), 29, 113, 250)

QUICK = ("-std=c11", "-O1", "-shared", "-fPIC")


@pytest.fixture(params=[1, 2], ids=["avx2", "avx512"])
def kernel(library: ctypes.CDLL, request: pytest.FixtureRequest) -> Kernel:
    try:
        return Kernel(library, request.param)
    except NoKernelError as error:
        pytest.skip(str(error))


def forward(model: RandomDlrm, kernel: Kernel) -> CompiledForward:
    return CompiledForward(CompiledWeights(model.dlrm, kernel))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_compiled_forward_is_that_of_float64(kernel: Kernel, shape: Shape) -> None:
    model = make_dlrm(shape)
    lane = forward(model, kernel)
    for rows in ROWS:
        inputs = make_inputs(shape, rows, wide=rows % 2 == 1)
        scores, expected = lane.run(inputs), model.expected(inputs)
        assert scores.shape == (rows,)
        scale = np.maximum(1, np.abs(expected))
        assert (np.abs(scores - expected) <= 2e-6 * scale).all()
    assert expected.std() > 0.05


def test_empty_and_long_bags_are_those_of_float64(kernel: Kernel) -> None:
    shape = Shape(("int8", "fp16", "fp32", "int4"), 12)
    model = make_dlrm(shape)
    for longest in (0, 90):
        inputs = make_inputs(shape, 40, longest=longest)
        gap = np.abs(forward(model, kernel).run(inputs) - model.expected(inputs))
        assert gap.max() <= 5e-6


def test_dense_values_that_rows_share_may_be_wider_than_every_layer(kernel: Kernel) -> None:
    shape = Shape(("int8",) * 2, 4, features=300)
    model = make_dlrm(shape)
    inputs = make_inputs(shape, 250)
    inputs[DENSE][1::2] = inputs[DENSE][::2]
    patterns = np.array([[0, 0, 0], [1, 0, 0]], np.uint8)
    shared = {**inputs, PATTERN_OF_ROW: np.arange(250, dtype=np.int32) % 2, PATTERNS: patterns}
    gap = np.abs(forward(model, kernel).run(shared) - model.expected(inputs))
    assert gap.max() <= 2e-6


def test_what_is_no_number_stays_in_its_row(kernel: Kernel) -> None:
    shape = Shape(("int8",) * 3, 16, dense=(40,), over=(20,))
    model = make_dlrm(shape)
    lane, inputs = forward(model, kernel), make_inputs(shape, 30)
    before = lane.run(inputs)
    inputs[DENSE][17, 2] = np.nan
    after = lane.run(inputs)
    assert np.isnan(after[17])
    assert (np.delete(after, 17) == np.delete(before, 17)).all()
    assert (lane.run({**inputs, DENSE: np.nan_to_num(inputs[DENSE])})[:17] == before[:17]).all()


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_few_rows_pass_over_zeros_but_not_what_is_no_number(kernel: Kernel, rows: int) -> None:
    shape = Shape(("int8",) * 3, 16, features=150, dense=(160,), over=(200, 33))
    model = make_dlrm(shape)
    lane, inputs = forward(model, kernel), make_inputs(shape, rows)
    inputs[DENSE][:, ::3] = 0
    inputs[DENSE][0, :100] = 0
    scores = lane.run(inputs)
    assert np.abs(scores - model.expected(inputs)).max() <= 2e-6
    inputs[DENSE][:] = 0
    assert np.abs(lane.run(inputs) - model.expected(inputs)).max() <= 2e-6
    inputs[DENSE][rows - 1, 5] = np.nan
    assert np.isnan(lane.run(inputs)).tolist() == [False] * (rows - 1) + [True]


@pytest.mark.parametrize("half", [False, True], ids=["fp32", "fp16"])
def test_inputs_that_are_0_in_all_rows_of_a_strip_are_passed_over(
    kernel: Kernel, *, half: bool
) -> None:
    shape = Shape(("int8",) * 3, 16, features=150, dense=(160,), over=(200, 33))
    model, random = make_dlrm(shape), np.random.default_rng(4)
    lane = CompiledForward(CompiledWeights(model.dlrm, kernel, half=half))
    for rows in ROWS[1:]:
        inputs = make_inputs(shape, rows)
        dense = np.where(random.random(inputs[DENSE].shape) < 0.6, 0, inputs[DENSE])
        dense[:, 40:90] = 0
        dense[rows // 2] = 0
        dense[:, 7] = -0.0
        inputs[DENSE] = dense.astype(np.float32)
        scores = lane.run(inputs)
        assert np.abs(scores - model.expected(inputs)).max() <= (2e-3 if half else 2e-6)
        # A value that is no multiple of 0 in one row of a strip is nothing to the others.
        inputs[DENSE][rows // 2, 60] = np.nan
        after = lane.run(inputs)
        assert np.isnan(after[rows // 2])
        others = np.delete(after, rows // 2), np.delete(scores, rows // 2)
        assert np.abs(others[0] - others[1]).max(initial=0) <= 1e-6


def misaligned(array: Array) -> Array:
    """Return the same numbers where no number of their size should begin."""
    memory = np.zeros(array.nbytes + 1, np.uint8)
    memory[1:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return memory[1:].view(array.dtype).reshape(array.shape)


def test_a_small_batch_may_be_of_any_width_and_lie_anywhere(kernel: Kernel) -> None:
    shape = Shape(("int8",) * 5, 16, dense=(40,), over=(20,))
    model = make_dlrm(shape)
    lane, inputs = forward(model, kernel), make_inputs(shape, 9, wide=True)
    before = lane.run(inputs)
    for dtype in (np.int16, np.int32, np.int64):
        lengths, ids = (inputs[f"{IDS}.{part}"].astype(dtype) for part in ("lengths", "values"))
        again = {DENSE: inputs[DENSE], f"{IDS}.lengths": lengths, f"{IDS}.values": ids}
        assert (
            lane.run({name: misaligned(array) for name, array in again.items()}) == before
        ).all()
    lane.run(make_inputs(shape, 15))  # what others leave behind is nobody's
    assert (lane.run(inputs) == before).all()


def test_few_rows_with_many_ids_are_those_of_float64(kernel: Kernel) -> None:
    shape = Shape(("int8", "fp32"), 16)
    model = make_dlrm(shape)
    inputs = make_inputs(shape, 12, longest=90)
    assert inputs[f"{IDS}.values"].size > FEW_IDS
    assert np.abs(forward(model, kernel).run(inputs) - model.expected(inputs)).max() <= 5e-6


def test_lanes_side_by_side_score_as_one_alone(kernel: Kernel) -> None:
    shape = Shape(("int8",) * 8, 32, dense=(64,), over=(64, 32))
    model = make_dlrm(shape)
    weights = CompiledWeights(model.dlrm, kernel)
    batches = [make_inputs(shape, rows) for rows in (1, 57, 113, 240)]
    alone = [CompiledForward(weights).run(batch) for batch in batches]

    def many(shift: int) -> bool:
        lane = CompiledForward(weights)
        order = [(turn + shift) % len(batches) for turn in range(100)]
        return all((lane.run(batches[number]) == alone[number]).all() for number in order)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(many, range(4)))


def test_an_unknown_instruction_set_is_refused(library: ctypes.CDLL) -> None:
    with pytest.raises(NoKernelError, match="lacks"):
        Kernel(library, 3)


@pytest.mark.slow
@pytest.mark.usefixtures("library")
def test_builders_at_the_same_time_leave_one_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_FLAGS", QUICK)
    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(load_library, [tmp_path / "new"] * 2))
    assert len(list((tmp_path / "new").iterdir())) == 1


@pytest.mark.usefixtures("library")
def test_a_library_that_is_cut_off_is_built_again(tmp_path: Path, kernel_cache: Path) -> None:
    for whole in kernel_cache.glob("forward-*.so"):
        (tmp_path / whole.name).write_bytes(whole.read_bytes()[:100])
    assert load_library(tmp_path).narsil_best_level() > 0


def test_without_a_compiler_the_reason_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_COMPILERS", ("no-such-compiler",))
    with pytest.raises(NoKernelError, match=r"no C compiler found \(no-such-compiler\)"):
        load_library(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_none_and_a_compiler_that_fails_are_reasons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NoKernelError, match="file"):
        load_library(tmp_path / "file")
    failing = shutil.which("false")
    assert failing is not None
    monkeypatch.setattr(build, "_COMPILERS", (failing,))
    with pytest.raises(NoKernelError, match="failed"):
        load_library(tmp_path)


def test_whole_numbers_of_three_bytes_stand_for_weights_of_one_size_only() -> None:
    random = np.random.default_rng(4)
    panels = random.standard_normal((3, 200, 16)).astype(np.float32)
    panels[1, :, 5] = 0
    made = as_triples(panels)
    assert made is not None
    bytes_of = np.pad(
        made.numbers[: panels.size * 3].reshape(*panels.shape, 3), [(0, 0)] * 3 + [(1, 0)]
    )
    unpacked = bytes_of.view("<i4")[..., 0].astype(np.float64)
    gap = np.abs(unpacked * made.scale.reshape(3, 1, 16) - panels)
    assert (gap <= np.abs(panels).max(axis=1, keepdims=True) * 2.0**-23).all()
    panels[2, 7, 3] = 100
    assert as_triples(panels) is None


def test_four_panels_lie_side_by_side_and_what_is_left_as_it_is() -> None:
    panels = np.random.default_rng(5).standard_normal((6, 7, 16)).astype(np.float32)
    made = as_triples(panels)
    assert made is not None
    apart = made.numbers[: panels.size * 3].reshape(6, 7, 48)
    moved = side_by_side(made, panels.shape)
    together = moved[: 4 * 7 * 48].reshape(7, 4, 48)
    assert (together == apart[:4].transpose(1, 0, 2)).all()
    assert (moved[4 * 7 * 48 :] == made.numbers[4 * 7 * 48 :]).all()


def test_weights_of_many_sizes_are_read_as_they_are(kernel: Kernel) -> None:
    shape = Shape(("int8",) * 3, 16, dense=(40,), over=(96, 8))
    model = make_dlrm(shape)
    model.dlrm.over[1].weight[3] *= 1e-6
    model.dlrm.over[1].weight[3, 5] = 1
    weights = CompiledWeights(model.dlrm, kernel)
    assert weights.model.dense[0].triples
    assert not weights.model.over[1].triples
    for rows in (1, 2, 3):
        inputs = make_inputs(shape, rows)
        gap = np.abs(CompiledForward(weights).run(inputs) - model.expected(inputs))
        assert gap.max() <= 2e-6
