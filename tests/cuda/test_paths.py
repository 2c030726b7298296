"""Every way to compute on a GPU scores as the CPU does."""

import threading
from typing import Any

import numpy as np
import pytest
import torch

from backends.kernels.interaction import available
from backends.torch_dlrm.gpu.hardware import Gpu
from backends.torch_dlrm.gpu.load import lean_on_gpu
from backends.torch_dlrm.options import TorchDlrmOptions
from backends.torch_dlrm.probes import difference
from backends.torch_dlrm.runtime import Runtime
from backends.torch_dlrm.serving import Serving
from backends.torch_dlrm.weights import Dlrm
from scheduler.types import Array
from tests.cuda.models import BOUND, OUTPUT, as_batch, make_inputs, make_model, on_cpu, prove

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
ROWS = 512


class WithoutFbgemm(Gpu):
    """A device for which FBGEMM's build has nothing."""

    def has_lookup(self) -> bool:
        return False


WAYS: dict[str, dict[str, Any]] = {
    "operators": {"graphs": "off", "interaction": "torch"},
    "graphs": {"interaction": "torch"},
    "fused": {"graphs": "off", "interaction": "triton"},
    "fused graphs": {"interaction": "triton"},
    "triton lookup, graphs": {"kind": WithoutFbgemm},
    "uvm": {"tables": "uvm", "interaction": "torch"},
    "auto": {},
}


@pytest.fixture(scope="module")
def model() -> Dlrm:
    """One model for all."""
    return make_model()


def serve(model: Dlrm, lanes: int = 1, kind: type[Gpu] = Gpu, **options: str) -> Serving:
    order = TorchDlrmOptions("", max_batch_rows=ROWS, **options)  # type: ignore[arg-type]
    return lean_on_gpu(order, model, OUTPUT, lanes, prove(model), kind(torch.device("cuda", 0)))


@pytest.mark.parametrize("way", WAYS)
def test_it_scores_as_the_cpu_does(model: Dlrm, way: str) -> None:
    options = WAYS[way]
    if options.get("interaction") == "triton" and (why := available()["triton"]):
        pytest.skip(why)
    serving = serve(model, **options)
    if "graphs" in way:
        assert not serving.properties["graphs"].startswith("off"), serving.properties["graphs"]
    runtime, forward = Runtime(serving, ()), on_cpu(model)
    for seed, rows in enumerate((1, 2, 3, 63, 64, 100, 300, ROWS, 5, 1)):
        inputs = make_inputs(model, rows, seed)
        gap = difference(runtime.prepare(as_batch(inputs))()[OUTPUT], forward(inputs))
        assert gap <= BOUND, f"{rows} rows"


def test_long_bags_that_no_graph_has_room_for_run_all_the_same(model: Dlrm) -> None:
    runtime, forward = Runtime(serve(model, interaction="torch"), ()), on_cpu(model)
    inputs = make_inputs(model, ROWS, 1, longest=100)
    gap = difference(runtime.prepare(as_batch(inputs))()[OUTPUT], forward(inputs))
    assert gap <= 10 * BOUND  # sums of a hundred rows


def test_lanes_run_side_by_side_without_mixing_rows(model: Dlrm) -> None:
    runtime, forward = Runtime(serve(model, lanes=3), ()), on_cpu(model)
    many = [make_inputs(model, rows, seed) for seed, rows in enumerate((1, 7, 64, 200, 33, 512))]
    wanted = [forward(inputs) for inputs in many]
    gaps: list[float] = []

    def work(first: int) -> None:
        for turn in range(60):
            number = (first + turn) % len(many)
            scores = runtime.prepare(as_batch(many[number]))()[OUTPUT]
            gaps.append(difference(scores, wanted[number]))

    threads = [threading.Thread(target=work, args=(first,)) for first in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(gaps) == 180
    assert max(gaps) <= BOUND


def test_answers_stay_what_they_were_when_the_buffers_are_used_again(model: Dlrm) -> None:
    runtime = Runtime(serve(model), ())
    kept: Array = runtime.prepare(as_batch(make_inputs(model, 64, 1)))()[OUTPUT]
    copy = kept.copy()
    for seed in range(20):
        runtime.prepare(as_batch(make_inputs(model, 64, seed + 2)))()
    np.testing.assert_array_equal(kept, copy)


def test_a_plan_that_is_dropped_gives_its_memory_back(model: Dlrm) -> None:
    serve(model)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        serve(model)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before + (8 << 20)
