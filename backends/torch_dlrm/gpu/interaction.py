"""Which kernel computes the interaction on the device: the best that is proven right there."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from backends.kernels.interaction import Interact, choose
from backends.torch_dlrm.gpu.hardware import Gpu
from backends.torch_dlrm.options import AUTO, TORCH
from backends.torch_dlrm.weights import Dlrm
from scheduler.errors import LoadError

_log = logging.getLogger(__name__)

# What "auto" tries.
_BEST = "triton"
_ROWS = 5
Choose = Callable[[str], Interact]


class KernelOffError(Exception):
    """Say why a kernel does not compute this model here."""


def pick(
    wanted: str, dlrm: Dlrm, gpu: Gpu, find: Choose = choose
) -> tuple[str, Interact | None, str]:
    """Return the kernel's name, the kernel (None: PyTorch's operators) and why it is not another.

    Raises LoadError if one that is asked for by name does not run.
    """
    if wanted == TORCH:
        return TORCH, None, ""
    name = _BEST if wanted == AUTO else wanted
    try:
        return name, _proven(name, dlrm, gpu, find), ""
    except KernelOffError as error:
        if wanted != AUTO:
            raise LoadError(f"--interaction {wanted}: {error}") from error
        _log.warning("the interaction runs as PyTorch's operators: %s", error)
        return TORCH, None, str(error)


def _proven(name: str, dlrm: Dlrm, gpu: Gpu, find: Choose) -> Interact:
    """Return the kernel ``name``, or raise KernelOffError."""
    vectors = dlrm.tables.features + 1
    if not np.array_equal(dlrm.pairs, np.stack(np.triu_indices(vectors, 1))):
        raise KernelOffError("the model keeps other products than those of all pairs in order")
    try:
        kernel = find(name)
        _compare(kernel, dlrm, gpu)
    except LoadError as error:
        raise KernelOffError(str(error)) from error
    except _failures() as error:
        why = str(error).strip().partition("\n")[0]
        raise KernelOffError(f"{name} failed: {type(error).__name__}: {why}") from error
    return kernel


def _compare(kernel: Interact, dlrm: Dlrm, gpu: Gpu) -> None:
    """Raise KernelOffError unless ``kernel`` gives what float64 gives, up to FP32's rounding."""
    random, tables = np.random.default_rng(3), dlrm.tables
    dense = random.standard_normal((_ROWS, tables.dim), np.float32)
    pooled = random.standard_normal((_ROWS, tables.features, tables.dim), np.float32)
    stream = gpu.stream()
    there = gpu.put(torch.from_numpy(dense)), gpu.put(torch.from_numpy(pooled))
    back = stream.to_host(stream.run(lambda: kernel(*there)))
    stream.wait()
    every = np.concatenate([dense[:, None], pooled], axis=1).astype(np.float64)
    first, second = dlrm.pairs
    wanted = np.concatenate([dense, (every @ every.transpose(0, 2, 1))[:, first, second]], axis=1)
    sizes = (np.abs(every) @ np.abs(every).transpose(0, 2, 1)).max()
    bound = (tables.dim + 1) * np.finfo(np.float32).eps * sizes
    ours = back.numpy()
    gap = np.abs(ours - wanted).max() if ours.shape == wanted.shape else np.inf
    if not gap <= bound:
        raise KernelOffError(f"it is off by {gap:.3g}, more than {bound:.3g}")


def _failures() -> tuple[type[BaseException], ...]:
    """Return what a compiler that runs at the first call may raise."""
    found: tuple[Any, ...] = (
        RuntimeError, OSError, ValueError, TypeError, LookupError, AttributeError, ImportError,
        AssertionError, NotImplementedError,
    )  # fmt: skip
    try:
        from triton.errors import TritonError  # noqa: PLC0415 - an extra
    except ImportError:
        return found
    return (*found, TritonError)
