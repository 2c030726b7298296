"""Where a model runs: host arrays in, host arrays out; here the CPU, in ``gpu`` a CUDA device."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch

from scheduler.errors import LoadError
from scheduler.types import Array

Module: TypeAlias = Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]


class Cpu:
    """Run ``module`` on the host with ``threads`` threads a forward, without a copy in or out.

    One caller at a time.
    """

    def __init__(self, module: Module, threads: int) -> None:
        self._module = module
        self._threads = threads
        # Kept, as making one takes longer than entering it; hence one thread at a time.
        self._mode = torch.inference_mode()

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one forward; the outputs are the tensors that it made."""
        # Both belong to the thread that runs. Without the first (0.2 us), OpenMP gives a new thread
        # a team of all CPUs, and with another thread busy one forward waits 32 ms for its team.
        torch.set_num_threads(self._threads)
        with self._mode:
            outputs = self._module(
                {name: torch.from_numpy(array) for name, array in inputs.items()}
            )
        return {name: tensor.numpy() for name, tensor in outputs.items()}


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
