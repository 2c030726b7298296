"""``python -m loadtest.accuracy ARTIFACT...``: how far scores are from the artifact's, and FP32's.

Every backend and plan with FP32 dense layers scores the same rows, a hundred at a time and some one
by one; so does the FP32 model that the artifact was made of. Rows are those held out from the
training, or of the workload that the load test sends: one id a bag. ``--golden`` adds the batch
that every artifact has, with bags of up to five ids. Exit code 1 if a line is not met.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from backends.dlrm.manifest import HELDOUT_FILE, WEIGHTS_FILE, read_manifest
from loadtest import candidates, workload
from loadtest.candidates import BASE
from loadtest.command import machine
from loadtest.compute import LEAST_SPREAD
from loadtest.encodings import DENSE
from loadtest.lab.tables import print_table
from loadtest.parity import Line, Scores, cut_up, fp32_scores, onnx, read_heldout, scores_of
from loadtest.precision import read_golden
from scheduler.errors import LoadError
from scheduler.types import InferRequest

FROM_ARTIFACT, FROM_FP32 = 1e-6, 3e-3
DEFAULT = (Path("artifacts/reference"), Path("artifacts/movielens"))
_A_REQUEST, _ONE_BY_ONE = 100, 128
_ONNX = "onnx_dlrm"


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows of one model, as one request, and the FP32 model's scores of them."""

    name: str
    request: InferRequest
    exact: Scores

    def requests(self) -> list[InferRequest]:
        """Return all in requests of a hundred, then the first ones once more, one by one."""
        alone = cut_up(self.request, 1)
        few = min(_ONE_BY_ONE, self.request.rows)
        return [*cut_up(self.request, _A_REQUEST), *(next(alone) for _ in range(few))]

    def exact_of_requests(self) -> Scores:
        """Return the FP32 model's scores of ``requests``."""
        return np.concatenate([self.exact, self.exact[:_ONE_BY_ONE]])


@dataclass(frozen=True, slots=True)
class Check:
    """One figure and what it has to be."""

    rows: str
    what: str
    figure: float
    limit: float
    at_least: bool = False
    said: str = ""

    @property
    def met(self) -> bool:
        """Return whether it is; what is no number is not."""
        return self.figure >= self.limit if self.at_least else self.figure <= self.limit


def main(argv: Sequence[str]) -> int:
    """Score, print a Markdown table; 1 if a line is not met, 2 if it could not be said."""
    arguments = _arguments(argv)
    folders = arguments.artifact or [DEFAULT[0], *filter(Path.is_dir, DEFAULT[1:])]
    print(json.dumps({**machine(), "command": ["python -m loadtest.accuracy", *argv]}))
    try:
        checks = [check for folder in folders for check in checks_of(folder, arguments)]
    except (LoadError, ModuleNotFoundError, OSError) as error:
        print(f"loadtest.accuracy: {error}", file=sys.stderr)
        return 2
    print_table([_shown(check) for check in checks])
    met = sum(check.met for check in checks)
    print(f"{met} of {len(checks)} met")
    return 0 if met == len(checks) else 1


def checks_of(folder: Path, arguments: argparse.Namespace) -> Iterator[Check]:
    """Score every set of rows that ``folder`` has. Raises LoadError."""
    only: list[str] = arguments.only
    found = candidates.load(folder, [name for name in only if name != _ONNX], _skipped)
    if found[0].name != BASE:
        raise LoadError("the artifact's own scores need PyTorch: this project's extra 'cpu'")
    for each in rows_of(folder, arguments.rows, golden=arguments.golden):
        requests = each.requests()
        lines = [Line(one.name, scores_of(one.backend, requests)) for one in found]
        if not only or _ONNX in only:
            lines += onnx(folder, requests, _told)
        yield from judged(each, lines)


def rows_of(folder: Path, rows: int, *, golden: bool) -> Iterator[Rows]:
    """Yield the held-out rows, or the workload's; the golden batch if asked, or if there is nothing
    else. Raises LoadError.
    """
    seeded = read_manifest(folder).weights.startswith("seed ")
    if (folder / HELDOUT_FILE).is_file():
        request, _, exact = read_heldout(folder / HELDOUT_FILE)
        yield Rows(f"{folder.name}: {request.rows} rows held out from training", request, exact)
    elif seeded or (folder / WEIGHTS_FILE).is_file():
        shape = workload.read_shape(folder)
        drawn = workload.draw(shape, rows, np.random.default_rng(0))
        request = InferRequest("", rows, drawn)
        name = f"{folder.name}: {rows} rows of its workload, one id a bag"
        yield Rows(name, request, fp32_scores(folder, request))
    else:
        golden = True
    if golden:
        batch = read_golden([folder])
        (request,) = batch.batch.requests
        name = f"{folder.name}: golden batch, {len(request.inputs[DENSE])} rows"
        yield Rows(name, request, batch.exact.astype(np.float64))


def judged(rows: Rows, lines: Sequence[Line]) -> Iterator[Check]:
    """Yield what ``lines`` of scores, the artifact's own first, have to hold."""
    artifact, *others = lines
    exact = rows.exact_of_requests()
    spread = float(exact.std())
    yield Check(rows.name, "deviation of the scores", spread, LEAST_SPREAD, at_least=True)
    for line in others:
        apart = float(np.abs(line.scores - artifact.scores).max())
        yield Check(rows.name, f"{line.path} from the artifact", apart, FROM_ARTIFACT)
    gaps = np.abs(artifact.scores - exact)
    gap, further = float(gaps.max()), int((gaps[: len(rows.exact)] > FROM_FP32).sum())
    said = f"{gap / spread:.3f} of the deviation; " if spread else ""
    said += f"{further} of {len(rows.exact)} rows further"
    yield Check(rows.name, "the artifact from FP32", gap, FROM_FP32, said=said)


def _shown(check: Check) -> dict[str, str]:
    return {
        "rows": check.rows,
        "what": check.what,
        "figure": f"{check.figure:.2g}" + (f" ({check.said})" if check.said else ""),
        "to reach": f"{'>=' if check.at_least else '<='} {check.limit:g}",
        "met": "yes" if check.met else "no",
    }


def _skipped(name: str, why: Exception) -> None:
    if name != _ONNX:  # which gets files of its own
        _told(name, why)


def _told(name: str, why: Exception | str) -> None:
    print(f"loadtest.accuracy: skipped {name}: {why}", file=sys.stderr)


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.accuracy", description=__doc__)
    add, shown = parser.add_argument, "(default: %(default)s)"
    what = f"folders (default: {DEFAULT[0]}, and {DEFAULT[1]} if there)"
    add("artifact", type=Path, nargs="*", help=what)
    add("--rows", type=int, default=128, help=f"of the workload, as the golden batch has {shown}")
    add("--only", type=lambda text: text.split(","), default=[], help="backend[:plan],...")
    add("--golden", action="store_true", help="the golden batch too: bags of up to five ids")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
