"""What is checked, in order of importance: each part is a process of its own.

An error that sticks ruins a process for CUDA, so no part can ruin another.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Part:
    """One line of the table: run ``command`` for ``timeout_s`` at most.

    ``kind`` says what its output is: "tests" (pytest's report at ``report``) or "figures" (one JSON
    object in the last line). ``base`` marks the path that others are compared with.
    """

    name: str
    kind: str
    command: tuple[str, ...]
    timeout_s: float
    report: Path | None = None


# How the lean plan is asked for. The tables lie in the device's memory unless it says otherwise.
LEAN: dict[str, dict[str, Any]] = {
    "lean + fused + graphs": {"interaction": "triton"},
    "lean + graphs": {"interaction": "torch"},
    "lean, as chosen by itself": {},
    "lean": {"interaction": "torch", "graphs": "off"},
    "lean, tables in host memory": {"tables": "uvm"},
    "lean, 2 lanes": {"lanes": 2},
    "lean, 4 lanes": {"lanes": 4},
}
ARTIFACT = "artifact as it is"
_PYTHON = sys.executable
# As ``narsil export``, where this project is not installed.
_EXPORT = (
    "import sys; from backends.torch_dlrm.export.command import main; sys.exit(main(sys.argv[1:]))"
)
# Plain settings: the project's own need plug-ins that a machine may lack.
_PYTEST = (_PYTHON, "-m", "pytest", "-q", "--noconftest", "-c", "tests/cuda/pytest.ini")


def environment() -> Part:
    """Return what says which machine and libraries these are."""
    return Part("environment", "figures", (_PYTHON, "-m", "backends.torch_dlrm.gpu.report"), 60)


def tests(out: Path) -> list[Part]:
    """Return the suites that need a device."""
    suites = {
        "tests: the device": ("tests/cuda/test_device.py",),
        "tests: kernels against float64": (
            "tests/numerics/test_interaction.py",
            "tests/numerics/test_lookup_triton.py",
            "-k",
            "not cutile and not interpreter",
        ),
        "tests: every path": ("tests/cuda/test_paths.py",),
        # Last: what it compiles with changes with every driver.
        "tests: cuTile kernel": ("tests/numerics/test_interaction.py", "-k", "cutile"),
    }
    return [_suite(name, arguments, out) for name, arguments in suites.items()]


def _suite(name: str, arguments: Sequence[str], out: Path) -> Part:
    report = out / f"{name.replace(': ', '-').replace(' ', '-')}.xml"
    command = (*_PYTEST, f"--junit-xml={report}", *arguments)
    return Part(name, "tests", command, 120, report)


def exports(host: Path, device: Path, preset: str) -> list[Part]:
    """Return what makes the artifacts that are not there yet."""
    wanted = {"export for the CPU": (host, "cpu"), "export for the GPU": (device, "cuda:0")}
    return [
        Part(
            name,
            "figures",
            (_PYTHON, "-c", _EXPORT, str(folder), "--preset", preset,
             "--device", where, "--name", preset),
            120,
        )
        for name, (folder, where) in wanted.items()
        if not (folder / "manifest.json").exists()
    ]  # fmt: skip


def paths(host: Path, device: Path, seconds: float) -> list[Part]:
    """Return the ways to serve: each is compared with the CPU's scores, then measured."""
    found = [_path(ARTIFACT, device, host, {"plan": "artifact"}, seconds)]
    for name, options in LEAN.items():
        found.append(_path(name, host, host, {"plan": "lean", **options}, seconds))
    cutile = {"plan": "lean", "interaction": "cutile"}
    found.append(_path("lean + cuTile + graphs", host, host, cutile, seconds))
    return found


def _path(name: str, folder: Path, golden: Path, options: dict[str, Any], seconds: float) -> Part:
    order = {"path": str(folder), "device": "cuda:0", "lanes": 1, **options}
    command = (
        _PYTHON, "-m", "loadtest.gpu_check.path", json.dumps(order), str(golden), str(seconds)
    )  # fmt: skip
    return Part(name, "figures", command, 90)


def wires(host: Path, device: Path) -> list[Part]:
    """Return the servers to ask through gRPC."""
    ways = {ARTIFACT: (device, "artifact"), "lean, as chosen by itself": (host, "lean")}
    return [
        Part(
            f"gRPC: {name}",
            "figures",
            (_PYTHON, "-m", "loadtest.gpu_check.wire", str(folder), plan),
            90,
        )
        for name, (folder, plan) in ways.items()
    ]
