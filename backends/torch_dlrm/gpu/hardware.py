"""The seam: every call of CUDA itself, through PyTorch. Tests put a device of their own here.

What is enqueued on a stream has happened only after its ``wait``.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from backends.cpus import usable_cpus

Tensor = torch.Tensor
Result = TypeVar("Result")
_cuda: Any = torch.cuda
# PyTorch allows one capture at a time in a process; two models may load at once.
_CAPTURING = threading.Lock()
_WARM_UPS = 3
_LOOKUP = "fbgemm::int_nbit_split_embedding_codegen_lookup_function"
_dispatch: Any = torch._C._dispatch_has_kernel_for_dispatch_key  # noqa: SLF001 - no other way


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A captured forward: ``replay`` it on its stream, then ``outputs`` hold what it computed."""

    replay: Callable[[], None]
    outputs: dict[str, Tensor]


class Stream:
    """One lane's own order of work on the device; used by one thread at a time."""

    def __init__(self, device: torch.device, *, blocking: bool) -> None:
        self._stream = _cuda.Stream(device)
        self._event = _cuda.Event(blocking=blocking)
        self._pool = _cuda.graph_pool_handle()

    def copy(self, to: Tensor, source: Tensor) -> None:
        """Enqueue a copy; pinned memory is read later, so it must stay until ``wait``."""
        with torch.inference_mode(), _cuda.stream(self._stream):
            to.copy_(source, non_blocking=True)

    def run(self, work: Callable[[], Result]) -> Result:
        """Enqueue what ``work`` does and return its tensors; they have no values yet."""
        with torch.inference_mode(), _cuda.stream(self._stream):
            return work()

    def to_host(self, tensor: Tensor) -> Tensor:
        """Enqueue a copy into pinned memory of its own and return that."""
        return self.run(lambda: tensor.to("cpu", non_blocking=True))

    def capture(self, work: Callable[[], dict[str, Tensor]]) -> Graph:
        """Run ``work`` as often as it takes to be warm, then capture it."""
        graph = _cuda.CUDAGraph()
        # This stream is set once more around the capture: one that fails does not restore it.
        with _CAPTURING, torch.inference_mode(), _cuda.stream(self._stream):
            for _ in range(_WARM_UPS):
                # Kernels are loaded, compiled and chosen now; all of that would break a capture.
                work()
            self._stream.synchronize()
            # Other threads may serve meanwhile: only this one's calls are held to the rules.
            with _cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                outputs = work()
        return Graph(graph.replay, outputs)

    def wait(self) -> None:
        """Wait for all that was enqueued, without Python's lock."""
        self._event.record(self._stream)
        self._event.synchronize()


class Gpu:
    """One CUDA device of this process.

    ``location`` is what FBGEMM calls memory of the device (its EmbeddingLocation).
    """

    location = 0

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def has_lookup(self) -> bool:
        """Return whether FBGEMM's build has its inference lookup for the device."""
        import fbgemm_gpu  # noqa: F401, PLC0415 - registers the operators

        return bool(_dispatch(_LOOKUP, "CUDA"))

    def has(self, tensor: Tensor) -> bool:
        """Return whether ``tensor`` is the device's, not the host's."""
        return tensor.is_cuda

    def pinned(self, size_bytes: int) -> Tensor:
        """Return host memory that the device reads by itself."""
        with _cuda.device(self.device):
            return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)

    def empty(self, size_bytes: int) -> Tensor:
        """Return memory of the device, aligned to at least 256 bytes."""
        return torch.empty(size_bytes, dtype=torch.uint8, device=self.device)

    def managed(self, size_bytes: int) -> Tensor:
        """Return host memory that the device addresses as its own (UVM), for large tables."""
        # Registers the fbgemm:: operators; nothing else here needs FBGEMM.
        import fbgemm_gpu  # noqa: F401, PLC0415

        operators: Any = torch.ops.fbgemm
        like = torch.zeros(1, dtype=torch.uint8, device=self.device)
        managed: Tensor = operators.new_unified_tensor(like, [size_bytes], False)
        return managed

    def put(self, tensor: Tensor) -> Tensor:
        """Return a copy on the device, complete."""
        return tensor.to(self.device)

    def stream(self) -> Stream:
        """Return a new stream.

        Waiting for one burns a CPU, which answers sooner; with few CPUs the thread sleeps instead.
        """
        with _cuda.device(self.device):
            return Stream(self.device, blocking=usable_cpus() < 4)

    def free_bytes(self) -> int:
        """Return how much of the device's memory could be had now."""
        free, _ = _cuda.mem_get_info(self.device)
        held = _cuda.memory_reserved(self.device) - _cuda.memory_allocated(self.device)
        return int(free + held)

    def release(self) -> None:
        """Give memory that PyTorch keeps for later back to the device."""
        with _cuda.device(self.device):
            _cuda.empty_cache()

    def answers(self) -> bool:
        """Return whether the device still computes: after an error that sticks, nothing does."""
        try:
            one = torch.ones(1, device=self.device) + 1
            return bool(one.item() == 2.0)
        except RuntimeError:
            return False

    def facts(self) -> dict[str, str]:
        """Return the device's name and the identifier that NVIDIA's tools know it by."""
        found = _cuda.get_device_properties(self.device)
        # PyTorch prints it without the prefix of NVIDIA's tools.
        uuid = str(getattr(found, "uuid", "")).removeprefix("GPU-")
        return {"gpu": str(found.name), "gpu_uuid": f"GPU-{uuid}" if uuid else ""}
