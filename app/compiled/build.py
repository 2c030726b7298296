"""``narsil compile``: have mypyc compile the path of a request, for every later start to use."""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from app.compiled.modules import ROOT, place, sources
from app.compiled.use import LIBRARY
from scheduler.ended import how_ended

_PACKAGES = ("app", "backends", "scheduler", "transports")
_SHARED = "*__mypyc.*"


class CompileError(Exception):
    """It cannot be compiled here; the message says why."""


def main(argv: Sequence[str]) -> int:
    """Compile what is not compiled yet, say where it is; 1 if it cannot be."""
    argparse.ArgumentParser(
        prog="narsil compile",
        description="Compile the path of a request with mypyc, for every later start. Needs a C"
        " compiler, Python's headers and this project's extra 'compile'.",
    ).parse_args(argv)
    folder = place()
    try:
        if not folder.is_dir():
            print("compiling the path of a request: some minutes, once ...", flush=True)
        print(f"compiled: {compile_sources(folder)}")
    except CompileError as error:
        print(f"narsil: {error}; the interpreted modules serve as well, slower", file=sys.stderr)
        return 1
    return 0


def compile_sources(folder: Path) -> Path:
    """Return ``folder`` with the compiled modules in it, put there whole. Raises CompileError."""
    if folder.is_dir():
        return folder
    if find_spec("mypyc") is None or find_spec("setuptools") is None:
        raise CompileError("compiling needs pip install -e '.[compile]' in the project's folder")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="compiling-", dir=folder.parent) as name:
            made = _made(Path(name))
            if not folder.is_dir():  # several processes may compile at once: the first one's stays
                made.replace(folder)
    except OSError as error:
        raise CompileError(str(error)) from error
    return folder


def _made(work: Path) -> Path:
    """Compile a copy of the sources in ``work``; return the folder of what was made."""
    copied, out = work / "sources", work / "out"
    for package in _PACKAGES:
        shutil.copytree(ROOT / package, copied / package, ignore=shutil.ignore_patterns("*.so"))
    command = [sys.executable, "-m", "app.compiled.step", str(out), *map(str, sources())]
    done = subprocess.run(  # noqa: S603  # no part of the command is a client's
        command, cwd=copied, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        said = (done.stdout + done.stderr).strip()[-2000:]
        raise CompileError(f"mypyc {how_ended(done.returncode)}: {said}")
    (out / LIBRARY).mkdir()
    for shared in out.glob(_SHARED):
        shared.rename(out / LIBRARY / shared.name)
    return out
