"""``python -m loadtest.precision ARTIFACT...``: what each precision costs in error and in time.

One artifact a precision of the tables, all of one seed: ``narsil export --tables``. Every precision
of the dense layers that a backend has is measured with each. Errors are those from the scores of
the FP32 model on the golden batch; times are of one forward, one thread, all taking turns.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np

from backends.dlrm.manifest import GOLDEN_SCORES, model_file, read_manifest
from loadtest import workload
from loadtest.candidates import Candidate
from loadtest.command import machine
from loadtest.compute import LEAST_SPREAD, forward_times
from loadtest.encodings import DENSE
from loadtest.lab.stats import median, median_ratio
from loadtest.lab.tables import print_table
from scheduler.errors import LoadError
from scheduler.types import Array, Batch, InferRequest

# What the option "dense" can be set to, by backend.
WAYS = {"torch_dlrm": ("fp32", "bf16"), "native_dlrm": ("fp32", "fp16")}


@dataclasses.dataclass(frozen=True, slots=True)
class Golden:
    """One request and the scores of the FP32 model for it, which every artifact was made of."""

    batch: Batch
    exact: Array


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One candidate, and what stands beside its times."""

    candidate: Candidate
    said: Mapping[str, str]


def main(argv: Sequence[str]) -> int:
    """Measure, print a Markdown table; return 1 if that is not possible."""
    arguments = _arguments(argv)
    try:
        golden = read_golden(arguments.artifacts)
        rows = [
            _row(folder, backend, dense, golden, max(arguments.rows))
            for folder in arguments.artifacts
            for backend in arguments.only or WAYS
            for dense in WAYS[backend]
        ]
    except (LoadError, OSError, KeyError) as error:
        print(f"loadtest.precision: {error}", file=sys.stderr)
        return 1
    print(json.dumps({**machine(), "command": ["python -m loadtest.precision", *argv]}))
    print(f"\nStandard deviation of the FP32 scores: {golden.exact.std():.3g}\n")
    shape = workload.read_shape(arguments.artifacts[0])
    candidates = [row.candidate for row in rows]
    times = {
        count: forward_times(candidates, shape, count, arguments.rounds) for count in arguments.rows
    }
    print_table([_line(row, times, candidates[0].name) for row in rows])
    return 0


def read_golden(folders: Sequence[Path]) -> Golden:
    """Return the golden batch that all ``folders`` have. Raises LoadError if they differ."""
    found: list[dict[str, Array]] = []
    for folder in folders:
        with np.load(folder / "golden.npz") as arrays:
            found.append(
                {key: arrays[key] for key in arrays.files if not key.startswith(GOLDEN_SCORES)}
            )
        same = all(np.array_equal(found[0][key], found[-1][key]) for key in found[0])
        if not same:
            raise LoadError(f"{folder} was made of another model than {folders[0]}")
    exact = np.concatenate([found[0].pop(key) for key in list(found[0]) if key.startswith("fp32.")])
    if exact.std() < LEAST_SPREAD:
        raise LoadError(f"the scores' deviation is {exact.std():.2g}, below {LEAST_SPREAD}")
    return Golden(Batch((InferRequest("", len(found[0][DENSE]), found[0]),)), exact)


def _row(folder: Path, backend: str, dense: str, golden: Golden, most_rows: int) -> Row:
    plugin: Any = entry_points(group="narsil.backends")[backend].load()
    options: dict[str, Any] = {"path": str(folder), "lanes": 1, "dense": dense}
    if backend == "torch_dlrm":
        options |= {"intra_op_threads": 1, "plan": "lean"}
    options["max_batch_rows"] = max(most_rows, golden.batch.rows)
    loaded = plugin(plugin.Options(**options))
    loaded.load()
    (scores,) = loaded.prepare(golden.batch)().values()
    error = np.abs(scores.astype(np.float64) - golden.exact)
    tables = read_manifest(folder).dtypes["tables"]
    said = {
        "tables": tables, "backend": backend, "dense": dense,
        "file, MB": f"{model_file(folder).stat().st_size / 1e6:.0f}",
        "largest error": f"{error.max():.1e}", "mean error": f"{error.mean():.1e}",
    }  # fmt: skip
    return Row(Candidate(f"{tables} {backend} {dense}", loaded), said)


def _line(
    row: Row, times: Mapping[int, Mapping[str, Sequence[float]]], first: str
) -> dict[str, float | str]:
    line: dict[str, float | str] = dict(row.said)
    for rows, measured in times.items():
        mine = measured[row.candidate.name]
        ratio = median_ratio(mine, measured[first])
        line[f"{rows} rows, us"] = f"{median(mine) * 1e6:.0f} ({ratio:.2f})"
    return line


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.precision", description=__doc__)
    add, shown = parser.add_argument, "(default: %(default)s)"
    add("artifacts", type=Path, nargs="+", help="folders of narsil export")
    add("--rows", type=_numbers, default="1,100,1600", help=f"rows a forward {shown}")
    add("--rounds", type=int, default=7, help=f"turns of each candidate {shown}")
    add("--only", choices=sorted(WAYS), action="append", help="backend; may be given again")
    return parser.parse_args(argv)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
