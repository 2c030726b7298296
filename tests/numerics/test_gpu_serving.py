"""A model on a fake GPU behind the engine: loaded as a server does, and what errors do to it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from backends.dlrm.gather import IDS
from backends.dlrm.manifest import MODEL_FILE
from backends.jagged import JaggedLayout
from backends.torch_dlrm import loading, runtime, with_torch
from backends.torch_dlrm.backend import TorchDlrmBackend
from backends.torch_dlrm.export.golden import OUTPUT, Golden
from backends.torch_dlrm.gpu.load import artifact_on_gpu
from backends.torch_dlrm.gpu.packing import Form
from backends.torch_dlrm.options import TorchDlrmOptions
from backends.torch_dlrm.probes import TOLERANCE, difference
from backends.torch_dlrm.torchscript import load_module
from scheduler.engine import Engine
from scheduler.errors import Code, LoadError, ServingError
from scheduler.observer import Observer
from scheduler.options import SchedulerOptions
from scheduler.types import Batch
from tests.fixtures.artifacts import take_rows
from tests.fixtures.fake_gpu import ILLEGAL, FakeGpu, no_memory

CUDA = torch.device("cuda", 0)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """The device that ``cuda:0`` means here."""
    fake = FakeGpu()
    monkeypatch.setattr(with_torch, "Gpu", lambda device: fake)
    monkeypatch.setattr(loading, "device_of", str)
    return fake


def on_gpu(artifact: Path, **options: str) -> TorchDlrmBackend:
    return TorchDlrmBackend(
        TorchDlrmOptions(str(artifact), "cuda:0", max_batch_rows=16, **options)  # type: ignore[arg-type]
    )


async def served(backend: TorchDlrmBackend) -> Engine:
    engine = Engine(SchedulerOptions(), Observer())
    await engine.load(backend)
    engine.open()
    return engine


def once(error: Callable[[], Exception]) -> Callable[[], None]:
    """Raise the error at the first call only."""
    left = [error]

    def fail() -> None:
        if left:
            raise left.pop()()

    return fail


async def test_an_artifact_exported_for_the_cpu_serves_on_a_gpu_by_the_lean_plan(
    small_artifact: Path, golden: Golden, gpu: FakeGpu
) -> None:
    engine = await served(on_gpu(small_artifact))
    request = take_rows(golden.request(), 0, 5)
    response = await engine.infer(request)
    assert difference(response.outputs[OUTPUT], golden.served[OUTPUT][:5]) <= TOLERANCE
    properties = engine.spec("small").properties
    wanted = {"plan": "lean", "device": "cuda:0", "lanes": "1", "tables": "copy", "gpu": "fake"}
    assert wanted.items() <= properties.items()
    assert properties["graphs"] == "5 up to 16 rows"
    # Triton is installed here, and has no device.
    assert (properties["interaction"], properties["lookup"]) == ("torch", "fbgemm")
    assert "triton" in properties["interaction_reason"]
    await engine.close(grace_s=1.0)


async def test_memory_that_runs_out_fails_one_request_and_the_model_stays_up(
    small_artifact: Path, golden: Golden, gpu: FakeGpu
) -> None:
    engine = await served(on_gpu(small_artifact))
    gpu.before_run = once(no_memory)
    with pytest.raises(ServingError, match="no memory for a batch of 5 rows") as caught:
        await engine.infer(take_rows(golden.request(), 0, 5))
    assert caught.value.code is Code.OVERLOADED
    assert engine.ready
    answer = await engine.infer(take_rows(golden.request(), 0, 2))
    assert difference(answer.outputs[OUTPUT], golden.served[OUTPUT][:2]) <= TOLERANCE
    await engine.close(grace_s=1.0)


async def test_an_error_that_sticks_takes_the_model_down(
    small_artifact: Path, golden: Golden, gpu: FakeGpu
) -> None:
    engine = await served(on_gpu(small_artifact))
    gpu.before_wait = once(lambda: RuntimeError(ILLEGAL))
    with pytest.raises(ServingError) as caught:
        await engine.infer(take_rows(golden.request(), 0, 5))
    assert caught.value.code in {Code.INTERNAL, Code.UNAVAILABLE}
    assert not engine.ready
    await engine.close(grace_s=1.0)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"interaction": "triton"}, "--interaction triton: .+"),
        ({"tables": "map"}, "--tables map is for the CPU; on a GPU: copy or uvm"),
        ({"plan": "artifact"}, "exported for cpu and runs only there|no TorchScript model"),
    ],
)
def test_what_cannot_be_had_on_a_gpu_is_refused_before_ready(
    small_artifact: Path, gpu: FakeGpu, options: dict[str, str], complaint: str
) -> None:
    with pytest.raises(LoadError, match=complaint):
        on_gpu(small_artifact, **options).load()


def test_the_file_s_own_forward_runs_on_a_lane_without_graphs(
    small_artifact: Path, golden: Golden
) -> None:
    module = load_module(small_artifact / MODEL_FILE, torch.device("cpu"))
    gpu, features = FakeGpu(), tuple(str(number) for number in range(26))
    layout = JaggedLayout(IDS, features, np.full(26, 1000))
    serving = artifact_on_gpu(module, Form(layout, 13), 1, 16, gpu)
    compute = runtime.Runtime(serving, ()).prepare(Batch((take_rows(golden.request(), 0, 7),)))
    assert difference(compute()[OUTPUT], golden.served[OUTPUT][:7]) <= TOLERANCE
    assert gpu.replays == 0
    assert serving.properties["graphs"].startswith("off: ")
