"""The C kernel of a whole forward, built where it runs."""

import ctypes
from pathlib import Path

from backends.compiled.build import Sources
from backends.compiled.build import load_library as load

FORWARD = Sources("backends.dlrm.forward", "forward")


def load_library(folder: Path) -> ctypes.CDLL:
    """Return the kernel's library, built into ``folder`` if need be. Raises NoKernelError."""
    return load(folder, FORWARD)
