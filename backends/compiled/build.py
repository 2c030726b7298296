"""Build a library of C with the machine's compiler, once, and load it.

Built where it runs instead of when the package is installed: wheels stay pure Python, and a changed
source can never meet an old build. Decision 0022 says more.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from scheduler.ended import how_ended

# First found, first taken. All of them know the attributes and built-ins that the source uses.
_COMPILERS = ("cc", "gcc", "clang")
# -ffp-contract is each compiler's own default unless it is said.
_FLAGS = ("-std=c11", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-shared", "-fPIC")
_LIBRARIES = ("-lm",)
_MOST_SECONDS = 120.0


class NoKernelError(Exception):
    """There is no compiled kernel here; the message says why."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The folder ``c`` of ``package``, of which ``name``.c is compiled and the rest included."""

    package: str
    name: str


def load_library(folder: Path, sources: Sources) -> ctypes.CDLL:
    """Return the library of ``sources``, built into ``folder`` if it is not there yet.

    ``folder`` is trusted like the program. Raises NoKernelError.
    """
    if platform.machine() not in {"x86_64", "AMD64"} or os.name != "posix":
        raise NoKernelError(f"it is written for x86-64, this is {platform.machine()}")
    folder = folder.expanduser()
    try:
        return _loaded(folder, sources)
    except OSError as error:
        # Only some say which file: a disk that is full does not.
        where = "" if error.filename else f"{folder}: "
        raise NoKernelError(f"{where}{error}") from error


def _loaded(folder: Path, sources: Sources) -> ctypes.CDLL:
    path = _built(folder, sources)
    try:
        return ctypes.CDLL(str(path))
    except OSError:
        # Cut off, perhaps, when the machine last stopped: once more.
        path.unlink()
        return ctypes.CDLL(str(_built(folder, sources)))


def _built(folder: Path, sources: Sources) -> Path:
    files = _files(sources)
    parts = [*_FLAGS, *_LIBRARIES, *(file.read_text("utf-8") for file in files)]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    path = folder / f"{sources.name}-{key[:16]}.so"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="building-", dir=folder) as place:
            # Several processes may build it at once: the last one's takes the others' place.
            _build(sources.name, files, Path(place)).replace(path)
    return path


def _files(sources: Sources) -> list[Traversable]:
    folder = resources.files(sources.package) / "c"
    return sorted(
        (entry for entry in folder.iterdir() if entry.name.endswith((".c", ".h"))),
        key=lambda entry: entry.name,
    )


def _build(name: str, files: list[Traversable], place: Path) -> Path:
    """Compile ``files`` in ``place``; return the library's path. Raises NoKernelError."""
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise NoKernelError(f"no C compiler found ({', '.join(_COMPILERS)})")
    for file in files:
        (place / file.name).write_bytes(file.read_bytes())
    command = [compiler, *_FLAGS, f"{name}.c", "-o", f"{name}.so", *_LIBRARIES]
    try:
        done = subprocess.run(  # noqa: S603  # no part of the command is a client's
            command, cwd=place, capture_output=True, text=True, errors="replace",
            timeout=_MOST_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise NoKernelError(f"{compiler} took more than {_MOST_SECONDS:.0f} s") from error
    if done.returncode:
        why = done.stderr.strip()[-500:] or how_ended(done.returncode)
        raise NoKernelError(f"{compiler} failed: {why}")
    return place / f"{name}.so"
