"""What kernels need of PyTorch's or CuPy's CUDA device, whichever of them a process has."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class GpuArrays:
    """Make FP32 arrays on the device, and wait for its work."""

    zeros: Callable[[tuple[int, ...]], Any]
    wait: Callable[[], None]


def arrays_on_gpu() -> GpuArrays | None:
    """Return how arrays are made by the library that is already imported and has a device."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and torch.cuda.is_available():
        return GpuArrays(lambda shape: torch.zeros(shape, device="cuda"), torch.cuda.synchronize)
    if cupy is not None and cupy.cuda.is_available():
        return GpuArrays(
            lambda shape: cupy.zeros(shape, "float32"), cupy.cuda.get_current_stream().synchronize
        )
    return None


def empty_like(array: Any, shape: tuple[int, ...]) -> Any:
    """Return an array of ``shape`` with the library, device and dtype of ``array``."""
    if hasattr(array, "new_empty"):
        return array.new_empty(shape)
    return sys.modules["cupy"].empty(shape, array.dtype)


def current_stream(array: Any) -> Any:
    """Return the stream that the library of ``array`` works on now."""
    if hasattr(array, "new_empty"):
        return sys.modules["torch"].cuda.current_stream(array.device)
    return sys.modules["cupy"].cuda.get_current_stream()
