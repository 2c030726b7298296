"""``narsil parity ARTIFACT``: one model's scores by every backend and over every transport.

The labelled rows that were held out from its training are scored by the FP32 model in eager
TorchRec, by every registered backend and plan, and by a server that is asked over every wire.
Exit codes: 0, 1 something differs by more than it may or could not be asked.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.metrics import roc_auc_score

from loadtest import candidates, progress, workload
from loadtest.ask import ask_all
from loadtest.candidates import Prepares
from loadtest.closed import NoServerError, RequestFailedError
from loadtest.command import machine
from loadtest.encodings import DENSE, LENGTHS, VALUES, decode, encode
from loadtest.lab.tables import print_table
from loadtest.progress import Progress
from loadtest.served import Served, serving
from loadtest.wires.connect import connected
from loadtest.wires.kinds import KINDS, Kind, target
from loadtest.workload import ModelShape
from scheduler.errors import LoadError
from scheduler.rows import cut
from scheduler.types import Array, Batch, InferRequest, ModelSpec, TensorSpec

_ONNX = "onnx_dlrm"
_ONNX_EXTRA = "install this project's extra 'onnx': pip install -e '.[onnx]' in its folder"
HELDOUT_FILE = "heldout.npz"
FP32, RECORDED = "FP32, eager TorchRec", "FP32, as recorded in training"
# How far the INT8 scores may be from each other, and any AUC from that of the FP32 model.
_TOLERANCE, _AUC_TOLERANCE = 1e-5, 0.002
Scores = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """Scores of one path; ``int8`` if they are of the quantised model."""

    path: str
    scores: Scores
    int8: bool = True


def main(argv: Sequence[str]) -> int:
    """Run ``narsil parity`` with ``argv``; print a table, return the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        return _run(arguments, argv)
    except (LoadError, NoServerError, RequestFailedError, OSError) as error:
        print(f"narsil parity: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="narsil parity",
        description="Compare a model's scores of its held-out rows: FP32, every backend, every "
        "transport.",
    )
    add, shown = parser.add_argument, "(default: %(default)s)"
    add("artifact", type=Path, help="folder of narsil train")
    add("--rows", type=int, default=100, help=f"rows a request {shown}")
    add("--json", type=Path, help="file to write the figures to")
    return parser


def _run(arguments: argparse.Namespace, argv: Sequence[str]) -> int:
    folder: Path = arguments.artifact
    shape = workload.read_shape(folder)
    whole, labels, recorded = read_heldout(folder / HELDOUT_FILE)
    print(f"narsil parity of {folder}: {len(labels)} rows held out from its training", flush=True)
    with progress.shown("narsil parity") as told:
        lines = _lines(arguments, shape, whole, recorded, told)
    head = {**machine(), "command": ["narsil", "parity", *argv], "rows": len(labels)}
    figures = [_figures(line, lines, labels) for line in lines]
    print_table([_shown(each) for each in figures])
    if arguments.json:
        text = json.dumps({"manifest": head, "paths": figures}, indent=2)
        arguments.json.write_text(text + "\n", encoding="utf-8")
    return judge(figures)


def _lines(
    arguments: argparse.Namespace,
    shape: ModelShape,
    whole: InferRequest,
    recorded: Scores,
    told: Progress,
) -> list[Line]:
    """Score the rows by every path, the exact scores first."""
    folder: Path = arguments.artifact
    told.doing("scoring with the FP32 model")
    lines = [Line(FP32, fp32_scores(folder, whole), int8=False)]
    lines.append(Line(RECORDED, recorded, int8=False))
    told.doing("loading every backend and plan")
    found = candidates.load(folder, (), _skipped_unless_onnx)
    requests = list(cut_up(whole, arguments.rows))
    for one in found:
        told.doing(f"scoring with {one.name}")
        lines.append(Line(one.name, scores_of(one.backend, requests)))
    told.doing(f"writing ONNX and scoring with {_ONNX}")
    lines += onnx(folder, requests, _skipped)
    told.doing("serving it, and asking over every wire")
    return lines + asked(folder, shape, requests)


def _skipped(name: str, why: Exception | str) -> None:
    print(f"narsil parity: skipped {name}: {why}", file=sys.stderr)


def _skipped_unless_onnx(name: str, why: Exception) -> None:
    """Say it, but of the backend that gets files of its own afterwards."""
    if name != _ONNX:
        _skipped(name, why)


def read_heldout(path: Path) -> tuple[InferRequest, Array, Scores]:
    """Return the rows as one request, their labels, and the FP32 scores of the training.

    Raises LoadError.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            inputs = {name: arrays[name] for name in (DENSE, LENGTHS, VALUES)}
            labels, recorded = arrays["labels"], arrays["fp32"].astype(np.float64)
    except FileNotFoundError as error:
        raise LoadError(
            f"{path} does not exist: narsil train writes it; for other artifacts there is "
            f"python -m loadtest.accuracy {path.parent}"
        ) from error
    except (OSError, KeyError, ValueError) as error:
        raise LoadError(f"{path} is not of narsil train: {error}") from error
    return InferRequest("", len(labels), inputs), labels, recorded


def fp32_scores(folder: Path, whole: InferRequest) -> Scores:
    """Return the scores of the FP32 model that ``folder`` was made of. Raises LoadError."""
    score = entry_points(group="narsil.references")["fp32"].load()
    scores: Array = score(folder, whole.inputs)
    return scores.astype(np.float64)


def cut_up(whole: InferRequest, rows: int) -> Iterator[InferRequest]:
    """Yield ``whole`` as requests of ``rows`` rows, the last of what is left."""
    float32, int32 = np.dtype(np.float32), np.dtype(np.int32)
    inputs = (
        TensorSpec(DENSE, float32, ("rows", "*")),
        TensorSpec(LENGTHS, int32, ("*", "rows")),
        TensorSpec(VALUES, int32, ("*",), lengths=LENGTHS),
    )
    spec = ModelSpec("", "", inputs, (), rows)
    for start in range(0, whole.rows, rows):
        yield cut(spec, whole, start, min(start + rows, whole.rows))


def scores_of(backend: Prepares, requests: Sequence[InferRequest]) -> Scores:
    """Return the scores of the only output, one request a batch."""
    return _joined(backend.prepare(Batch((request,)))() for request in requests)


def _joined(answers: Iterator[Mapping[str, Array]] | Sequence[Mapping[str, Array]]) -> Scores:
    parts = [next(iter(answer.values())) for answer in answers]
    return np.concatenate(parts).astype(np.float64)


def onnx(
    folder: Path, requests: Sequence[InferRequest], skipped: Callable[[str, Exception | str], None]
) -> list[Line]:
    """Return the scores of the artifact written as ONNX, or tell ``skipped`` why there are none."""
    try:
        from backends.onnx_dlrm.export.write import export  # noqa: PLC0415

        with tempfile.TemporaryDirectory() as place:
            export(folder, Path(place) / "onnx")
            backend = candidates.load_one(Path(place) / "onnx", _ONNX)
            return [Line(_ONNX, scores_of(backend, requests))]
    except ModuleNotFoundError as error:
        skipped(_ONNX, f"{error}; {_ONNX_EXTRA}")
        return []
    except LoadError as error:
        skipped(_ONNX, error)
        return []


def asked(folder: Path, shape: ModelShape, requests: Sequence[InferRequest]) -> list[Line]:
    """Serve the artifact and return what every wire answers."""
    with serving(folder) as served:
        return [
            Line(f"served, {name}", _over(kind, served, shape, requests))
            for name, kind in KINDS.items()
        ]


def _over(
    kind: Kind, served: Served, shape: ModelShape, requests: Sequence[InferRequest]
) -> Scores:
    transport = {"https": "http3"}.get(kind.scheme, kind.scheme)
    where = target(kind, served.urls[transport], served.ca, model=shape.name)
    bodies = (
        encode(kind.encoding, shape.name, shape.features, request.inputs) for request in requests
    )
    with connected(kind.scheme, where, 1) as (wire,):
        return _joined([decode(kind.encoding, body) for body in ask_all(wire, bodies)])


def _figures(line: Line, lines: Sequence[Line], labels: Array) -> dict[str, Any]:
    exact = lines[0].scores
    artifact = next(each.scores for each in lines if each.int8)
    apart, from_artifact = np.abs(line.scores - exact), np.abs(line.scores - artifact)
    auc = float(roc_auc_score(labels, line.scores))
    return {
        "path": line.path,
        "largest from FP32": float(apart.max()),
        "mean from FP32": float(apart.mean()),
        "largest from INT8": float(from_artifact.max()) if line.int8 else None,
        "AUC": auc,
        "AUC - FP32": auc - float(roc_auc_score(labels, exact)),
    }


def _shown(figures: Mapping[str, Any]) -> dict[str, str]:
    kinds = {"path": "", "AUC": ".5f", "AUC - FP32": "+.5f"}
    return {
        name: "" if value is None else format(value, kinds.get(name, ".1e"))
        for name, value in figures.items()
    }


def judge(figures: Sequence[Mapping[str, Any]]) -> int:
    """Return 1 and say so on stderr if some path differs by more than it may; NaN always does."""
    wrong = [
        each["path"]
        for each in figures
        if not abs(each["AUC - FP32"]) <= _AUC_TOLERANCE
        or not (each["largest from INT8"] or 0.0) <= _TOLERANCE
    ]
    if wrong:
        print(
            f"narsil parity: more than {_TOLERANCE:g} from the artifact's scores, or "
            f"{_AUC_TOLERANCE:g} from the FP32 AUC: {', '.join(wrong)}",
            file=sys.stderr,
        )
    else:
        print(
            f"passed: every path within {_TOLERANCE:g} of the artifact's scores and "
            f"{_AUC_TOLERANCE:g} of the FP32 AUC"
        )
    return 1 if wrong else 0
