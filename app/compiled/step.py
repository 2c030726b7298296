"""``python -m app.compiled.step OUT FILE ...``: mypyc itself, in the folder of the sources."""

import sys
from pathlib import Path

from mypyc.build import mypycify
from setuptools import Distribution
from setuptools.command.build_ext import build_ext

# The rest of the project, and of the world, is read for its types only.
_MYPY = ("--ignore-missing-imports", "--follow-imports=silent", "--config-file=")


def main(out: Path, files: list[str]) -> None:
    """Compile ``files`` into ``out``, one shared library and a stub for each."""
    extensions = mypycify([*_MYPY, *files], opt_level="2", debug_level="0", target_dir="c")
    command = build_ext(Distribution({"name": "compiled", "ext_modules": extensions}))
    command.build_lib, command.build_temp = str(out), "objects"
    command.ensure_finalized()
    command.run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
