"""Which errors ruin a device for good, and what becomes of them."""

import pytest
import torch

from backends.torch_dlrm.device import is_sticky

ILLEGAL = "CUDA error: an illegal memory access was encountered"


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError(ILLEGAL),
        torch.AcceleratorError("CUDA error: device-side assert triggered"),
        RuntimeError(ILLEGAL),
        RuntimeError(f"{ILLEGAL}\nCUDA kernel errors might be asynchronously reported"),
    ],
    ids=repr,
)
def test_what_cuda_itself_reports_ruins_the_device(error: RuntimeError) -> None:
    assert is_sticky(error)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (4x3 and 5x6)"),
        RuntimeError(""),
    ],
    ids=repr,
)
def test_running_out_of_memory_and_bad_shapes_do_not(error: RuntimeError) -> None:
    assert not is_sticky(error)
