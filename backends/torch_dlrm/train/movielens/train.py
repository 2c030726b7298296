"""From the ratings to an artifact: features, split, baselines, model, export. Needs torchrec."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from backends.dlrm.manifest import HELDOUT_FILE, MODEL_FILE, WEIGHTS_FILE
from backends.torch_dlrm.device import parse_device
from backends.torch_dlrm.export.golden import OUTPUT
from backends.torch_dlrm.export.golden import ROWS as GOLDEN_ROWS
from backends.torch_dlrm.export.model import tensors
from backends.torch_dlrm.export.presets import DlrmShape
from backends.torch_dlrm.export.write import STEPS, Order, Trained, export
from backends.torch_dlrm.torchscript import load_module
from backends.torch_dlrm.train.baselines import logistic_regression, quality
from backends.torch_dlrm.train.fit import Fitted, Recipe, fit, score, steps
from backends.torch_dlrm.train.movielens import catalogue, features, files
from backends.torch_dlrm.train.movielens.catalogue import Catalogue
from backends.torch_dlrm.train.report import Report
from backends.torch_dlrm.train.rows import Rows, write_rows
from scheduler.types import Array

DATA = "MovieLens-100K"
# Of the ratings in the order of time: for training, and up to where for choosing the epoch.
_TRAINED, _VALIDATED = 0.8, 0.9
_SCORED_ROWS = 2048
_DIM, _DENSE_LAYERS, _OVER_LAYERS = 16, (64, 32), (64, 32, 1)
# Most held-out users are new: a model that leans on who they are would stumble over them.
_DROPPED = {"user": 0.8, "liked": 0.3, "disliked": 0.3}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to make of the data in ``wheel``; ``seed`` is of the weights and the batches."""

    wheel: Path
    out: Path
    name: str
    version: str = "1"
    seed: int = 0
    device: str = "cpu"
    replace: bool = False


@dataclass(frozen=True, slots=True)
class Parts:
    """The ratings in the order of time, cut twice."""

    train: Rows
    validation: Rows
    test: Rows


@dataclass(slots=True)
class Progress:
    """Whom to tell: what begins and how many steps it has, and each of them."""

    begin: Callable[[str, int], None]
    step: Callable[[], None]
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def of(self, name: str, text: str, total: int = 1) -> Iterator[None]:
        """Tell of a part, and take its time under ``name``."""
        self.begin(text, total)
        started_s = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - started_s, 2)


def train(wanted: Wanted, progress: Progress) -> Report:
    """Write the artifact folder ``wanted.out``; return how good the model is.

    Raises NoDataError, ExportError or LoadError.
    """
    with progress.of("features", f"reading {DATA} and making features of it"):
        data = files.read(wanted.wheel)
        rows, known = features.build(data)
    parts = _parts(rows)
    shape, recipe = _shape(known), Recipe(dropped=_DROPPED, seed=wanted.seed)
    with progress.of("baselines", "fitting the baselines: popularity, logistic regression"):
        baselines = _baselines(parts, shape)
    text = f"training a DLRM on {len(parts.train):,} ratings"
    with progress.of("training", text, steps(recipe, len(parts.train))):
        fitted = fit(shape, recipe, parts.train, parts.validation, progress.step)
    result = _Result(wanted, Catalogue(data, known), shape, fitted, parts.test)
    with progress.of("export", "exporting with INT8 tables", STEPS):
        report = Report(
            DATA, wanted.seed, _split(data, parts), fitted.aucs, baselines, progress.seconds
        )
        return result.export(report, progress.step)


def _parts(rows: Rows) -> Parts:
    first, second = int(_TRAINED * len(rows)), int(_VALIDATED * len(rows))
    return Parts(rows.part(0, first), rows.part(first, second), rows.part(second, len(rows)))


def _baselines(parts: Parts, shape: DlrmShape) -> dict[str, dict[str, float]]:
    test = parts.test
    regression = logistic_regression(parts.train, test, shape.table_rows)
    return {
        "popularity": quality(test.labels, features.like_shares(test)),
        "logistic regression": quality(test.labels, regression),
    }


def _shape(known: features.Known) -> DlrmShape:
    return DlrmShape(
        features=features.FEATURES,
        table_rows=known.table_rows,
        dim=_DIM,
        dense_names=features.COLUMNS,
        dense_layers=(*_DENSE_LAYERS, _DIM),
        over_layers=_OVER_LAYERS,
    )


def _order(wanted: Wanted, shape: DlrmShape, trained: Trained) -> Order:
    return Order(
        out=wanted.out,
        shape=shape,
        name=wanted.name,
        version=wanted.version,
        seed=wanted.seed,
        device=wanted.device,
        replace=wanted.replace,
        trained=trained,
    )


def _split(data: files.MovieLens, parts: Parts) -> dict[str, dict[str, float]]:
    """Say how many ratings each part has, from when to when (Unix, seconds)."""
    said: dict[str, dict[str, float]] = {}
    stop, times = 0, data.ratings.time_s
    for name in ("train", "validation", "test"):
        part: Rows = getattr(parts, name)
        start, stop = stop, stop + len(part)
        said[name] = {
            "ratings": len(part),
            "like_share": round(float(part.labels.mean()), 4),
            "from_s": int(times[start]),
            "to_s": int(times[stop - 1]),
        }
    return said


class _Result:
    """A fitted model, and what is needed to export, to show and to check it."""

    def __init__(
        self, wanted: Wanted, shown: Catalogue, shape: DlrmShape, fitted: Fitted, test: Rows
    ) -> None:
        self._wanted, self._catalogue = wanted, shown
        self._shape, self._fitted, self._test = shape, fitted, test
        self._scores = score(fitted.dlrm, shape, test)

    def export(self, report: Report, step: Callable[[], None]) -> Report:
        """Write the artifact folder, everything in it; return ``report`` with the model's lines."""
        reports: list[Report] = []
        user, movies = self._example()

        def beside(folder: Path) -> None:
            save_file(state, folder / WEIGHTS_FILE)
            write_rows(folder / HELDOUT_FILE, self._test, fp32=self._scores)
            catalogue.write(folder, self._catalogue, self._catalogue.note(user, movies))
            reports.append(self._judged(report, folder))
            reports[0].write(folder)

        state = {name: one.contiguous() for name, one in self._fitted.dlrm.state_dict().items()}
        trained = Trained(
            state=state,
            weights=f"trained on {DATA}, epoch {self._fitted.best}",
            golden=self._golden().inputs,
            example=self._catalogue.request(user, movies) + "\n",
            beside=beside,
        )
        export(_order(self._wanted, self._shape, trained), lambda text: step())
        return reports[0]

    def _judged(self, report: Report, folder: Path) -> Report:
        device = parse_device(self._wanted.device)
        int8 = artifact_scores(folder / MODEL_FILE, self._test, device)
        found = {"DLRM, FP32": self._scores, "DLRM, INT8": int8}
        ours = {name: quality(self._test.labels, scores) for name, scores in found.items()}
        return replace(report, models={**report.models, **ours})

    def _golden(self) -> Rows:
        """Return held-out rows from the lowest score to the highest."""
        ranks = np.linspace(0, len(self._scores) - 1, GOLDEN_ROWS).astype(np.int64)
        return self._test.take(np.argsort(self._scores, kind="stable")[ranks])

    def _example(self) -> tuple[int, list[int]]:
        user = self._catalogue.example_user()
        movies = self._catalogue.candidates(user)
        rows = self._catalogue.rows(user, movies)
        scores = score(self._fitted.dlrm, self._shape, rows)
        return user, catalogue.shown(scores.tolist(), movies)


def artifact_scores(model: Path, rows: Rows, device: torch.device) -> Array:
    """Return the scores that the artifact's own graph gives on ``device``."""
    module = load_module(model, device)
    starts = range(0, len(rows), _SCORED_ROWS)
    parts = [rows.part(at, min(at + _SCORED_ROWS, len(rows))).inputs for at in starts]
    with torch.inference_mode():
        return np.concatenate([module(tensors(part, device))[OUTPUT].numpy() for part in parts])
