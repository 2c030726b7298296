"""``python -m loadtest.gpu_check``: run every part, print one table; a failure stops no other."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

from loadtest.gpu_check import parts
from loadtest.gpu_check.parts import ARTIFACT, Part
from loadtest.lab.tables import print_table

# The acceptance of every path, from the scores of the CPU.
TOLERANCE = 1e-6
_COLUMNS = {
    "part": "part",
    "state": "state",
    "error": "error",
    "p50_us_1": "p50 us, 1 row",
    "p50_us_100": "p50 us, 100",
    "samples_s_1": "samples/s, 1 row",
    "samples_s_100": "samples/s, 100",
    "p50 / artifact": "p50 / artifact",
    "samples / artifact": "samples / artifact",
    "gpu_mib": "GPU MiB",
    "note": "note",
}
_NOTE_CHARACTERS = 160


def main(argv: Sequence[str] | None = None) -> int:
    """Check; return 0 if every part passed, 1 if one failed, 2 if there is no device."""
    arguments = _arguments(argv)
    arguments.out.mkdir(parents=True, exist_ok=True)
    deadline_s = time.monotonic() + arguments.limit_s
    first = run(parts.environment(), deadline_s)
    print(json.dumps(first, default=str), flush=True)
    if first["state"] != "passed" or not first.get("cuda"):
        print("loadtest.gpu_check: PyTorch finds no CUDA device here", file=sys.stderr)
        return 2
    results = [first]
    for part in _chosen(arguments):
        results.append(run(part, deadline_s))
        print(json.dumps(results[-1], default=str), file=sys.stderr, flush=True)
    compare(results)
    print_table([_line(result) for result in results])
    text = json.dumps(results, indent=1, default=str)
    (arguments.out / "gpu_check.json").write_text(text + "\n", encoding="utf-8")
    return 1 if any(result["state"] == "FAILED" for result in results) else 0


def _chosen(arguments: argparse.Namespace) -> list[Part]:
    host, device = arguments.artifact, arguments.cuda_artifact
    suites = parts.tests(arguments.out)
    every = [
        *suites[:2],
        *parts.exports(host, device, arguments.preset),
        *parts.paths(host, device, arguments.seconds),
        suites[2],
        *parts.wires(host, device),
        suites[3],
    ]
    return [part for part in every if arguments.only in part.name]


def run(part: Part, deadline_s: float) -> dict[str, Any]:
    """Run one part; return its name, state, note and figures, whatever happens."""
    left_s = deadline_s - time.monotonic()
    if left_s < 5:
        return {"part": part.name, "state": "skipped", "note": "out of time"}
    began_s = time.monotonic()
    code, out, err = _output(part.command, min(part.timeout_s, left_s))
    result: dict[str, Any] = {"part": part.name, "seconds": round(time.monotonic() - began_s, 1)}
    found = _tests(part.report) if part.report else _figures(out)
    failed = code != 0 or found.get("error", 0) > TOLERANCE
    note = found.pop("note", "") or (_last(err) or _last(out) if code else "")
    state = "FAILED" if failed else found.pop("state", "passed")
    return {**result, **found, "state": state, "note": note}


def _output(command: Sequence[str], timeout_s: float) -> tuple[int, str, str]:
    """Run ``command`` in a group of its own, which ends with it: a server's, too."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        return -1, out, f"{err}\nno end within {timeout_s:.0f} s"
    return process.returncode, out, err


def _figures(out: str) -> dict[str, Any]:
    try:
        found = json.loads(out.strip().rpartition("\n")[2])
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    keys = ("plan_reason", "interaction", "interaction_reason", "graphs")
    note = "; ".join(str(found[key]) for key in keys if found.get(key))
    return {**found, "note": note}


def _tests(report: Path) -> dict[str, Any]:
    """Return pytest's counts and the first failure."""
    try:
        root = Xml.parse(report).getroot()  # noqa: S314 - our own pytest wrote it
    except (OSError, Xml.ParseError):
        return {}
    suite = next(iter(root.iter("testsuite")), None)
    if suite is None:
        return {}
    counts = {key: int(suite.get(key, "0")) for key in ("tests", "failures", "errors", "skipped")}
    said = [
        f"{case.get('name')}: {problem.get('message', '')}"
        for case in root.iter("testcase")
        for problem in case
        if problem.tag in {"failure", "error", "skipped"}
    ]
    passed = counts["tests"] - counts["failures"] - counts["errors"] - counts["skipped"]
    note = f"{passed} passed, {counts['skipped']} skipped, {len(said) - counts['skipped']} failed"
    state = {} if passed else {"state": "skipped"}
    return {**counts, **state, "said": said, "note": "; ".join([note, *said[:1]])}


def compare(results: Sequence[dict[str, Any]]) -> None:
    """Add to each path how it compares with the artifact as it is, on this device."""
    for prefix in ("", "gRPC: "):
        base = next((one for one in results if one["part"] == prefix + ARTIFACT), {})
        for result in results:
            if result["part"].startswith("gRPC: ") != bool(prefix):
                continue
            for key, name in (("p50_us_100", "p50"), ("samples_s_100", "samples")):
                if base.get(key) and result.get(key):
                    result[f"{name} / artifact"] = result[key] / base[key]


def _line(result: dict[str, Any]) -> dict[str, float | str]:
    line = {title: result.get(key, "") for key, title in _COLUMNS.items()}
    error = line["error"]
    line["error"] = f"{error:.1e}" if isinstance(error, float) else ""
    line["note"] = " ".join(str(line["note"]).replace("|", "/").split())[:_NOTE_CHARACTERS]
    return line


def _last(text: str) -> str:
    return text.strip().rpartition("\n")[2]


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.gpu_check", description=__doc__)
    add, shown = parser.add_argument, "(default: %(default)s)"
    add(
        "--artifact",
        type=Path,
        default=Path("artifacts/gpu-check"),
        help=f"exported for the CPU; made if it is not there {shown}",
    )
    add(
        "--cuda-artifact",
        type=Path,
        default=Path("artifacts/gpu-check-cuda"),
        help=f"the same, exported for the GPU {shown}",
    )
    add("--preset", default="reference", help=f"of artifacts that are made {shown}")
    add("--seconds", type=float, default=1.0, help=f"each measurement {shown}")
    add(
        "--limit-s",
        type=float,
        default=450.0,
        help=f"parts that would begin later are skipped {shown}",
    )
    add("--only", default="", help="parts whose name has this in it")
    add("--out", type=Path, default=Path("build/gpu_check"), help=f"folder of the reports {shown}")
    return parser.parse_args(argv)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
