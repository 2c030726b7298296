"""The seam on a real device: order, capture, memory, and what its errors say."""

import subprocess
import sys

import pytest
import torch

from backends.torch_dlrm.gpu.faults import Fault, fault_of
from backends.torch_dlrm.gpu.hardware import Gpu

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
# In a process of its own: no later call of that process succeeds.
STICKY = """
import torch
from backends.torch_dlrm.gpu.faults import fault_of
from backends.torch_dlrm.gpu.hardware import Gpu
gpu = Gpu(torch.device("cuda", 0))
assert gpu.answers()
try:
    torch.zeros(4, device="cuda")[torch.tensor([1 << 20], device="cuda")].sum().item()
except RuntimeError as error:
    print(fault_of(error).name, gpu.answers(), type(error).__name__, str(error).splitlines()[0])
"""


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    """The first device."""
    return Gpu(torch.device("cuda", 0))


def test_a_copy_there_and_back_is_complete_after_the_wait(gpu: Gpu) -> None:
    stream, host = gpu.stream(), gpu.pinned(1 << 20)
    assert host.is_pinned()
    there = gpu.empty(1 << 20)
    for value in range(20):
        host.fill_(value)
        stream.copy(there, host)
        back = stream.to_host(stream.run(lambda: there + 1))
        stream.wait()
        assert bool((back == value + 1).all())


def test_a_graph_reads_its_static_buffer_anew_at_every_replay(gpu: Gpu) -> None:
    stream, there = gpu.stream(), gpu.empty(64)
    stream.run(there.zero_)
    graph = stream.capture(lambda: {"sum": there.sum()})
    for value in (1, 2, 3):
        stream.copy(there, torch.full((64,), value, dtype=torch.uint8).pin_memory())
        stream.run(graph.replay)
        total = stream.to_host(graph.outputs["sum"])
        stream.wait()
        assert int(total) == 64 * value


def test_a_capture_that_fails_leaves_the_stream_usable(gpu: Gpu) -> None:
    stream, there = gpu.stream(), gpu.empty(64)
    calls = iter(range(100))

    def work() -> dict[str, torch.Tensor]:
        if next(calls) >= 3:  # only while it is captured
            there.sum().item()
        return {"sum": there.sum()}

    stream.run(there.zero_)
    with pytest.raises(RuntimeError) as caught:
        stream.capture(work)
    assert fault_of(caught.value) is Fault.DEVICE
    assert gpu.answers()
    total = stream.to_host(stream.run(there.sum))
    stream.wait()
    assert int(total) == 0


def test_memory_that_runs_out_is_told_from_a_loss_and_passes(gpu: Gpu) -> None:
    with pytest.raises(RuntimeError) as caught:
        gpu.empty(1 << 42)
    assert fault_of(caught.value) is Fault.MEMORY
    gpu.release()
    assert gpu.answers()
    assert 0 < gpu.free_bytes() <= torch.cuda.get_device_properties(0).total_memory


def test_an_error_that_sticks_is_recognised() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STICKY], capture_output=True, text=True, timeout=120, check=False
    )
    last = done.stdout.strip().rpartition("\n")[2]
    assert last.startswith("LOST False "), done.stdout + done.stderr


def test_managed_memory_is_filled_and_read_through_the_device(gpu: Gpu) -> None:
    pytest.importorskip("fbgemm_gpu")
    if not gpu.has_lookup():
        pytest.skip("FBGEMM's build has nothing for CUDA")
    there = gpu.managed(1 << 20)
    assert gpu.has(there)
    there.copy_(torch.arange(1 << 20, dtype=torch.int32).to(torch.uint8))
    assert int(there[513].item()) == 1
    assert "GPU-" in gpu.facts()["gpu_uuid"]
