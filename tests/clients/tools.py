"""The clients that ``make clients`` puts beside the project."""

import asyncio
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / ".clients"
HOW = "is not there: `make clients` gets it (programs: on Debian or Ubuntu, x86_64)"


def program(name: str) -> Path:
    """Return the path of a program; skip the test if there is none."""
    return _present(FOLDER / "bin" / name, name)


def python() -> Path:
    """Return the interpreter of the clients' own virtualenv; skip the test if there is none."""
    return _present(FOLDER / "venv" / "bin" / "python", "the clients' virtualenv")


async def run(*command: str | Path, folder: Path | None = None) -> str:
    """Return what ``command`` prints; fail the test if it does not end with 0."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, output.decode() + errors.decode()
    return output.decode()


def _present(path: Path, name: str) -> Path:
    if not path.exists():
        pytest.skip(f"{name} {HOW}")
    return path
