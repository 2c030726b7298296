"""The fused plan scores as the artifact does, is chosen where it can be had, and says why not."""

import ctypes
import logging
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import fbgemm_gpu
import numpy as np
import pytest
import torch

from backends.compiled import build
from backends.compiled.build import NoKernelError
from backends.dlrm.gather import DENSE
from backends.dlrm.manifest import MODEL_FILE
from backends.torch_dlrm.export.golden import OUTPUT, Golden
from backends.torch_dlrm.formats import read_weights
from backends.torch_dlrm.fused import Fused
from backends.torch_dlrm.libraries import libraries
from backends.torch_dlrm.probes import difference, doubt, make_probes, wider
from backends.torch_dlrm.weights import Dlrm
from scheduler.errors import LoadError
from scheduler.types import Array, Batch
from tests.fixtures.artifacts import load, take_rows
from tests.fixtures.native import load_native
from tests.numerics.test_lean_plan import (
    average_the_bags,
    exchange_two_tables,
    forget_a_bias,
    shift_one_table_by_a_row,
)
from tests.numerics.test_lean_plan import forward as lean_forward


@pytest.fixture(scope="module")
def dlrm(small_artifact: Path) -> Dlrm:
    """The weights of the artifact, as mapped."""
    return read_weights(small_artifact / MODEL_FILE, verify=False)


def forward(dlrm: Dlrm, library: ctypes.CDLL) -> Callable[[dict[str, Array]], Array]:
    run = Fused(dlrm, OUTPUT, library).make_lane()
    return lambda inputs: run(inputs)[OUTPUT]


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("tables", ["copy", "map"])
def test_an_exported_artifact_is_computed_by_the_fused_plan_and_scores_the_same(
    small_artifact: Path, kernel_cache: Path, golden: Golden, tables: str
) -> None:
    fused = load(small_artifact, tables=tables, cache_dir=str(kernel_cache))
    properties, plain = fused.spec.properties, load(small_artifact, plan="artifact")
    assert properties["plan"] == "fused"
    assert properties["instructions"] in {"avx2", "avx512"}
    assert properties["threads_per_forward"] == "1"
    assert "plan_reason" not in properties
    assert replace(fused.spec, properties={}) == replace(plain.spec, properties={})
    for rows in (0, 1, 2, 33, 128):
        batch = Batch((take_rows(golden.request(), 0, rows),))
        ours, theirs = fused.prepare(batch)()[OUTPUT], plain.prepare(batch)()[OUTPUT]
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=0, atol=1e-6)


_LOADED = """
import sys
from backends.torch_dlrm.backend import TorchDlrmBackend
backend = TorchDlrmBackend(TorchDlrmBackend.Options(path=sys.argv[1], cache_dir=sys.argv[2]))
backend.load()
backend.update_tables()
print(backend.spec.properties["plan"], sorted({"torch", "fbgemm_gpu", "torchrec"} & {*sys.modules}))
"""


@pytest.mark.usefixtures("library")
def test_a_fused_plan_is_served_without_importing_pytorch(
    small_artifact: Path, kernel_cache: Path
) -> None:
    command = [sys.executable, "-c", _LOADED, str(small_artifact), str(kernel_cache)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "fused []"


def test_the_versions_that_are_read_are_those_that_an_import_finds() -> None:
    found = {"torch": str(torch.__version__), "fbgemm_gpu": str(fbgemm_gpu.__version__)}
    assert libraries() == found


@pytest.mark.usefixtures("library")
def test_large_finite_values_score_as_the_artifact_says(
    small_artifact: Path, kernel_cache: Path, golden: Golden
) -> None:
    plain = load(small_artifact, plan="artifact", max_batch_rows=4)
    others = [
        load(small_artifact, max_batch_rows=4, plan="fused", cache_dir=str(kernel_cache)),
        load_native(small_artifact, kernel_cache, lanes=1, kernel="compiled"),
        load_native(small_artifact, kernel_cache, lanes=1, kernel="numba"),
    ]
    found = []
    for row in range(20):
        request = take_rows(golden.request(), row, row + 1)
        for size in (1e25, 1e29, 1e33):
            dense = request.inputs[DENSE].astype(np.float32) * np.float32(size)
            batch = Batch((replace(request, inputs={**request.inputs, DENSE: dense}),))
            expected = float(np.asarray(plain.prepare(batch)()[OUTPUT])[0])
            found.append(expected)
            for other in others:
                assert float(np.asarray(other.prepare(batch)()[OUTPUT])[0]) == expected
    assert set(found) == {0.0, 1.0}


def exchange_two_layers_inputs(dlrm: Dlrm) -> Dlrm:
    """Return the model whose first over layer reads two products the wrong way round."""
    weight = dlrm.over[0].weight.copy()
    weight[:, [-1, -2]] = weight[:, [-2, -1]]
    return replace(dlrm, over=(replace(dlrm.over[0], weight=weight), *dlrm.over[1:]))


@pytest.mark.parametrize(
    "fault",
    [
        exchange_two_tables,
        shift_one_table_by_a_row,
        average_the_bags,
        forget_a_bias,
        exchange_two_layers_inputs,
    ],
)
def test_a_plan_that_computes_something_else_is_found_out(
    dlrm: Dlrm, library: ctypes.CDLL, fault: Callable[[Dlrm], Dlrm]
) -> None:
    probes, right = wider(make_probes(dlrm)), lean_forward(dlrm)
    theirs = [right(probe.inputs) for probe in probes]
    assert doubt(dlrm, forward(dlrm, library), probes, theirs) == ""
    assert "probe rows differ by" in doubt(dlrm, forward(fault(dlrm), library), probes, theirs)


def test_products_in_another_order_of_the_vectors_are_computed_in_that_order(
    dlrm: Dlrm, library: ctypes.CDLL
) -> None:
    order = np.array([0, *np.random.default_rng(3).permutation(26) + 1])
    turned = replace(dlrm, pairs=order[np.stack(np.triu_indices(27, 1))][::-1].copy())
    inputs = make_probes(dlrm)[4].inputs
    ours, theirs = forward(turned, library)(inputs), lean_forward(turned)(inputs)
    assert difference(ours, theirs) <= 2e-6
    assert difference(ours, forward(dlrm, library)(inputs)) > 0.01


def exchange_two_products(dlrm: Dlrm) -> Dlrm:
    pairs = dlrm.pairs.copy()
    pairs[:, [40, 41]] = pairs[:, [41, 40]]
    return replace(dlrm, pairs=pairs)


def store_two_bits(dlrm: Dlrm) -> Dlrm:
    return replace(dlrm, tables=replace(dlrm.tables, types=np.full(26, 4, np.uint8)))


def concatenate_bags(dlrm: Dlrm) -> Dlrm:
    return replace(dlrm, tables=replace(dlrm.tables, pooling=2))


@pytest.mark.parametrize(
    ("other", "complaint"),
    [
        (exchange_two_products, "writes every product once, the dense vector's first"),
        (store_two_bits, "reads no rows of int2"),
        (concatenate_bags, "has no pooling mode 2"),
    ],
)
def test_what_the_kernel_does_not_compute_is_left_to_the_lean_plan(
    dlrm: Dlrm, library: ctypes.CDLL, other: Callable[[Dlrm], Dlrm], complaint: str
) -> None:
    with pytest.raises(NoKernelError, match=complaint):
        Fused(other(dlrm), OUTPUT, library)


def test_without_a_compiler_the_lean_plan_computes_and_the_log_says_why(
    small_artifact: Path,
    tmp_path: Path,
    golden: Golden,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(build, "_COMPILERS", ())
    with caplog.at_level(logging.WARNING):
        backend = load(small_artifact, cache_dir=str(tmp_path))
    assert backend.spec.properties["plan"] == "lean"
    assert "no C compiler found" in backend.spec.properties["plan_reason"]
    assert "no fused plan, the lean one computes: no C compiler found" in caplog.text
    scores = backend.prepare(Batch((golden.request(),)))()[OUTPUT]
    assert np.abs(np.asarray(scores) - np.asarray(golden.served[OUTPUT])).max() <= 1e-6
    with pytest.raises(LoadError, match=r"--plan fused: no C compiler found"):
        load(small_artifact, plan="fused", cache_dir=str(tmp_path))


@pytest.mark.parametrize(
    ("option", "complaint"),
    [
        ({"dense": "bf16"}, "--plan fused: --dense bf16: the C kernel computes in fp32"),
        ({"intra_op_threads": 2}, "--intra-op-threads 2: the C kernel computes on one thread"),
    ],
)
def test_options_that_only_the_lean_plan_follows_choose_it_and_exclude_the_fused_one(
    small_artifact: Path, kernel_cache: Path, option: dict[str, object], complaint: str
) -> None:
    cache = {"cache_dir": str(kernel_cache), "max_batch_rows": 2}
    with pytest.raises(LoadError, match=complaint):
        load(small_artifact, plan="fused", **option, **cache)
    assert load(small_artifact, **option, **cache).spec.properties["plan"] == "lean"
