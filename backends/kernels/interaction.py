"""The interaction of a DLRM as one kernel: every vector of a row, all their products, the triangle.

``interact(dense, pooled)`` takes (rows, dim) and (rows, features, dim), FP32, and returns
(rows, dim + pairs): the dense vector, then the products of every pair of the features + 1 vectors,
row by row of the triangle above the diagonal. Arrays are those of the kernel's own library.

The lean plan of ``torch_dlrm`` asks ``choose`` for one on a GPU; ``native_dlrm`` has its own,
fused with the lookup.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any, TypeAlias, cast

from scheduler.errors import LoadError

Interact: TypeAlias = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class Kernel:
    """Say where a kernel lives, whose arrays it takes and which extra it needs ("": none).

    Its module has ``why_off() -> str`` ("" where it runs) and ``interact``.
    """

    module: str
    arrays: str
    extra: str


KERNELS = MappingProxyType(
    {
        "numpy": Kernel("backends.kernels.interaction_numpy", "numpy", ""),
        "triton": Kernel("backends.kernels.interaction_triton", "torch", "triton"),
        "cutile": Kernel("backends.kernels.interaction_cutile", "torch or cupy", "cutile"),
        "cuda": Kernel("backends.kernels.interaction_cuda", "cupy", "cupy"),
    }
)


def available() -> dict[str, str]:
    """Return why each kernel does not run in this process; "" for those that do."""
    return {name: _why_off(name) for name in KERNELS}


def choose(name: str) -> Interact:
    """Return the kernel called ``name``. Raises LoadError saying why it does not run here."""
    if name not in KERNELS:
        raise LoadError(f"no interaction kernel {name!r}; known: {', '.join(KERNELS)}")
    why = _why_off(name)
    if why:
        raise LoadError(f"interaction kernel {name!r} is off: {why}")
    return cast("Interact", import_module(KERNELS[name].module).interact)


def _why_off(name: str) -> str:
    kernel = KERNELS[name]
    try:
        return cast("str", import_module(kernel.module).why_off())
    except ImportError as error:
        where = f"pip install -e '.[{kernel.extra}]' in its folder"
        return f"{error}; install this project's extra {kernel.extra!r}: {where}"
