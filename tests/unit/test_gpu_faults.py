"""Which errors ruin a device for good, which are of its memory, and which are none of its."""

import pytest
import torch

from backends.torch_dlrm.gpu.faults import Fault, fault_of

ILLEGAL = "CUDA error: an illegal memory access was encountered"


def raised_over(first: BaseException, second: BaseException) -> BaseException:
    """The second error, raised while the first was being handled."""
    second.__context__ = first
    return second


def numbered(code: int) -> torch.AcceleratorError:
    """An error whose text says nothing, as PyTorch's newer ones have a number."""
    error = torch.AcceleratorError("CUDA error")
    error.error_code = code  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError(ILLEGAL),
        torch.AcceleratorError("CUDA error: device-side assert triggered"),
        RuntimeError(ILLEGAL),
        RuntimeError(f"{ILLEGAL}\nCUDA kernel errors might be asynchronously reported"),
        RuntimeError("CUDA error: misaligned address"),
        RuntimeError("CUDA error: unspecified launch failure"),
        RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
        numbered(719),
        raised_over(
            RuntimeError(ILLEGAL), RuntimeError("CUDA error: operation failed due to a previous")
        ),
    ],
    ids=repr,
)
def test_what_sticks_ruins_the_device(error: BaseException) -> None:
    assert fault_of(error) is Fault.LOST


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        numbered(2),
        raised_over(
            torch.OutOfMemoryError("CUDA out of memory."),
            RuntimeError("CUDA error: operation failed due to a previous error during capture"),
        ),
    ],
    ids=repr,
)
def test_a_lack_of_memory_is_told_from_a_loss(error: BaseException) -> None:
    assert fault_of(error) is Fault.MEMORY


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: operation not permitted when stream is capturing"),
        RuntimeError("CUDA error: invalid argument"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"),
    ],
    ids=repr,
)
def test_what_may_pass_is_asked_about(error: BaseException) -> None:
    assert fault_of(error) is Fault.DEVICE


@pytest.mark.parametrize(
    "error",
    [RuntimeError("mat1 and mat2 shapes cannot be multiplied (4x3 and 5x6)"), RuntimeError("")],
    ids=repr,
)
def test_bad_shapes_are_no_fault_of_the_device(error: BaseException) -> None:
    assert fault_of(error) is Fault.OTHER
