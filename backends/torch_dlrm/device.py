"""Where the artifact runs: host arrays in, host arrays out, on a CPU or a CUDA device."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from scheduler.errors import DeviceLostError, LoadError
from scheduler.types import Array

Module: TypeAlias = Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]


class Device(Protocol):
    """One lane's way to run the artifact; ``make_device`` gives each lane its own."""

    def allocate(self, count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return host memory that ``run`` reads fast."""

    def run(self, module: Module, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one forward; the outputs own their memory and are complete on return."""


class Cpu:
    """Run on the host with ``threads`` threads a forward, without a copy in or out."""

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def allocate(self, count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return ordinary memory."""
        return np.empty(count, dtype)

    def run(self, module: Module, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one forward; the outputs are the tensors that it made."""
        # Both belong to the thread that runs. Without the first (0.2 us), OpenMP gives a new thread
        # a team of all CPUs, and with another thread busy one forward waits 32 ms for its team.
        torch.set_num_threads(self._threads)
        with torch.inference_mode():
            outputs = module({name: torch.from_numpy(array) for name, array in inputs.items()})
        return {name: tensor.numpy() for name, tensor in outputs.items()}


class Cuda:
    """Run on one GPU, on a stream of its own, from pinned memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def allocate(self, count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return pinned memory; the array keeps the tensor that owns it alive."""
        kind = torch.from_numpy(np.empty(0, dtype)).dtype
        array: npt.NDArray[Any] = torch.empty(count, dtype=kind, pin_memory=True).numpy()
        return array

    def run(self, module: Module, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Copy in, run, copy out and wait for the stream.

        TorchRec's packager ends the graph with a copy to the host that is not waited for: the
        result may be read only after the stream has been synchronised. The same wait lets the
        next batch overwrite the staging buffers. Raises DeviceLostError after an error that sticks.
        """
        try:
            return self._run(module, inputs)
        except RuntimeError as error:
            if is_sticky(error):
                raise DeviceLostError(str(error)) from error
            raise

    def _run(self, module: Module, inputs: Mapping[str, Array]) -> dict[str, Array]:
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            outputs = module(
                {
                    name: torch.from_numpy(array).to(self._device, non_blocking=True)
                    for name, array in inputs.items()
                }
            )
            hosted = {name: tensor.to("cpu", non_blocking=True) for name, tensor in outputs.items()}
            self._stream.synchronize()
        return {name: tensor.numpy() for name, tensor in hosted.items()}


def is_sticky(error: RuntimeError) -> bool:
    """Return whether every later call on the device will fail too.

    What CUDA itself reports (an illegal access, a device-side assert) ruins the process's context;
    running out of memory, or a library's own complaint, does not.
    """
    text = str(error)
    passing = "out of memory" in text or "CUBLAS_STATUS" in text or "CUSPARSE_STATUS" in text
    return "CUDA error" in text and not passing


def parse_device(text: str) -> torch.device:
    """Return the device called ``text``. Raises LoadError if there is none of that name here."""
    try:
        device = torch.device(text)
    except RuntimeError as error:
        raise LoadError(f"--device {text}: use cpu or cuda:N") from error
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise LoadError(f"--device {text}: use cpu or cuda:N")
    count = torch.cuda.device_count()
    index = device.index or 0
    if index >= count:
        raise LoadError(f"--device {text}: PyTorch {torch.__version__} sees {count} CUDA devices")
    return torch.device("cuda", index)


def make_device(device: torch.device, threads: int) -> Device:
    """Return a new runner, for one forward at a time."""
    return Cpu(threads) if device.type == "cpu" else Cuda(device)
