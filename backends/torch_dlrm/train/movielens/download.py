"""Fetch MovieLens-100K: it comes with a wheel of the package index, read and not installed."""

import subprocess
import sys
from pathlib import Path

from backends.dlrm.manifest import file_sha256
from backends.torch_dlrm.train.errors import NoDataError
from scheduler.ended import how_ended

REQUIREMENT = "recbole==1.2.1"
WHEEL = "recbole-1.2.1-py3-none-any.whl"
SHA256 = "9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407"
_TIMEOUT_S = 120.0
_PIP = ("--no-deps", "--only-binary=:all:", "--retries=1", "--timeout=15", "--no-input")


def fetch(cache: Path) -> Path:
    """Return the wheel in the folder ``cache``, downloaded (2 MB) unless it is there.

    Raises NoDataError.
    """
    wheel = cache / WHEEL
    if not wheel.is_file():
        _download(cache)
    try:
        found = file_sha256(wheel)
    except OSError as error:
        raise NoDataError(f"cannot read {wheel}: {error}") from error
    if found != SHA256:
        raise NoDataError(f"{wheel} has SHA-256 {found}, not {SHA256}; delete it to try again")
    return wheel


def _download(cache: Path) -> None:
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download")
    command = [*pip, *_PIP, "--dest", str(cache), REQUIREMENT]
    try:
        cache.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(  # noqa: S603 - pip, with arguments of our own
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoDataError(f"pip could not be asked for {REQUIREMENT}: {error}") from error
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        why = (errors or [f"it {how_ended(done.returncode)}"])[-1].removeprefix("ERROR: ")
        raise NoDataError(f"pip could not download {REQUIREMENT}: {why}")
