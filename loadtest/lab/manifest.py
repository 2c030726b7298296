"""Say on what, with what and how something was measured: nothing is a result without it."""

import argparse
import os
import platform
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = (
    "narsil",
    "numpy",
    "uvloop",
    "torch",
    "fbgemm_gpu-cpu",
    "grpcio",
    "uvicorn",
    "aioquic",
    "ngh2",
    "httptools",
    "ray",
)
# "max 100000", or a quota and a period in microseconds.
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def manifest(arguments: argparse.Namespace) -> dict[str, object]:
    """Return machine, versions, commit, every flag (the seed among them) and the time."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "tool": Path(sys.argv[0]).stem,
        "flags": {name: _plain(value) for name, value in vars(arguments).items()},
        "commit": _commit(),
        "machine": {
            "cpu": _cpu_model(),
            "cpus": len(os.sched_getaffinity(0)),
            "quota": _quota(),
            "kernel": platform.release(),
            "load_average": [round(load, 2) for load in os.getloadavg()],
        },
        "versions": {"python": platform.python_version(), **_versions()},
    }


def _plain(value: object) -> object:
    return value if isinstance(value, int | float | str | list | None) else str(value)


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    return found


def _commit() -> str:
    git = shutil.which("git")
    if git is None:
        return "unknown"
    here = Path(__file__).parent
    command = [git, "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _quota() -> str:
    return _QUOTA.read_text(encoding="utf-8").strip() if _QUOTA.is_file() else "none known"


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(": ")[2] for line in lines if "model name" in line), "unknown")
