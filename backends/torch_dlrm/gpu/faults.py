"""What an error of PyTorch, FBGEMM or Triton says about the device it came from."""

import enum
from collections.abc import Iterator

import torch

# CUDA's runtime API says of each that every later call in the process returns it too. Number and
# text as in cudaError_t and cudaGetErrorString.
_LOST = {
    4: "driver shutting down",
    46: "CUDA-capable device(s) is/are busy or unavailable",
    214: "uncorrectable ECC error encountered",
    220: "uncorrectable NVLink error",
    700: "an illegal memory access was encountered",
    702: "the launch timed out and was terminated",
    709: "context is destroyed",
    710: "device-side assert triggered",
    714: "hardware stack error",
    715: "an illegal instruction was encountered",
    716: "misaligned address",
    717: "operation not supported on global/shared address space",
    718: "invalid program counter",
    719: "unspecified launch failure",
    999: "unknown error",
}
# PyTorch's allocator, cudaErrorMemoryAllocation (2) from anywhere else, cuBLAS's own.
_MEMORY = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
_MEMORY_CODE = 2
# Who speaks in the first words of an error that came from the device at all.
_DEVICE = ("CUDA", "CUBLAS", "cuBLAS", "Triton Error", "NVRTC")


class Fault(enum.Enum):
    """What is left after an error."""

    MEMORY = "memory"  # the device is well, and short of memory
    LOST = "lost"  # no later call in this process can succeed
    DEVICE = "device"  # an error of the device that may pass: ask it
    OTHER = "other"  # nothing to do with the device


def fault_of(error: BaseException) -> Fault:
    """Return the worst that ``error``, or what it was raised from, says.

    The end of a failed capture raises an error of its own over the one that matters.
    """
    faults = {_fault_of(one) for one in _chain(error)}
    return next(
        (one for one in (Fault.LOST, Fault.MEMORY, Fault.DEVICE) if one in faults), Fault.OTHER
    )


def _fault_of(error: BaseException) -> Fault:
    code, text = getattr(error, "error_code", None), str(error)
    of_device = isinstance(error, torch.AcceleratorError) or any(one in text for one in _DEVICE)
    if isinstance(error, torch.OutOfMemoryError) or code == _MEMORY_CODE:
        return Fault.MEMORY
    if of_device and any(one in text for one in _MEMORY):
        return Fault.MEMORY
    if of_device and (code in _LOST or any(one in text for one in _LOST.values())):
        return Fault.LOST
    return Fault.DEVICE if of_device else Fault.OTHER


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
