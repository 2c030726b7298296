"""PyTorch and FBGEMM: their versions, told without importing them, and why they cannot be imported.

To import both takes two seconds of CPU and 400 MB. The fused plan computes without them.
"""

import contextlib
import ctypes
import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from scheduler.errors import LoadError

_TORCH_VERSION = re.compile(r"^__version__ = ['\"]([^'\"]+)['\"]$", re.MULTILINE)
# Where a build of FBGEMM says what it is.
_FBGEMM_FACTS = "docs/target.default.json.py"
# Shared libraries that are no part of any package: they come with the driver.
_OF_THE_DRIVER = ("libnvidia-ml", "libcuda.so")


def libraries() -> dict[str, str]:
    """Return the versions that a forward depends on. Raises ModuleNotFoundError."""
    return {"torch": _torch_version(), "fbgemm_gpu": _fbgemm_version()}


def libraries_line() -> str:
    """Return the same in one line, to compare."""
    return " ".join(f"{name} {version}" for name, version in libraries().items())


@contextlib.contextmanager
def imported() -> Iterator[None]:
    """Import what needs the libraries within the block. Raises LoadError, saying why not."""
    try:
        _load_without_the_lock()
        yield
    except OSError as error:
        raise LoadError(_why_not(error)) from error


def _load_without_the_lock() -> None:
    """Map PyTorch's libraries before Python does, which holds its lock meanwhile.

    For half a second nobody else would do anything: a model may be loaded beside others that serve.
    What cannot be mapped is left to the import, which says why; so is a CUDA build, which looks
    for its libraries in places of its own.
    """
    if "torch" in sys.modules or not sys.platform.startswith("linux"):
        return
    libraries = _folder("torch") / "lib"
    if (libraries / "libtorch_cuda.so").exists():
        return
    # A function of C's that is called through ctypes runs without the lock; CDLL itself does not.
    # Neither of them knows of Python. The first is what torch itself begins with, in this mode.
    dlopen = ctypes.CDLL(None).dlopen
    dlopen.argtypes, dlopen.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
    for name, mode in (("libtorch_global_deps.so", os.RTLD_GLOBAL), ("libtorch.so", 0)):
        if (libraries / name).is_file():
            dlopen(os.fsencode(libraries / name), os.RTLD_NOW | mode)


def _why_not(error: OSError) -> str:
    """Return why a library of PyTorch's or FBGEMM's cannot be loaded."""
    why = str(error.__cause__ or error)
    if any(library in why for library in _OF_THE_DRIVER):
        why += (
            ". That comes with NVIDIA's driver, which the CUDA builds need on any device: give a"
            " container its GPU (--gpus all), or take the CPU builds (extra 'cpu')"
        )
    return f"PyTorch or FBGEMM cannot be loaded: {why}"


def _torch_version() -> str:
    said = _TORCH_VERSION.search(_text(_folder("torch") / "version.py"))
    if said:
        return said[1]
    with imported():
        import torch  # noqa: PLC0415  # a build that says it elsewhere

    return str(torch.__version__)


def _fbgemm_version() -> str:
    try:
        return str(json.loads(_text(_folder("fbgemm_gpu") / _FBGEMM_FACTS))["version"])
    except (ValueError, LookupError, TypeError):
        with imported():
            import fbgemm_gpu  # noqa: PLC0415  # a build that says it elsewhere

        return str(fbgemm_gpu.__version__)


def _folder(package: str) -> Path:
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    return Path(found.origin).parent


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
