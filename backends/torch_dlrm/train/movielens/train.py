"""From the ratings to an artifact folder: features, split, baselines, model, export. Needs torchrec."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from backends.dlrm.manifest import HELDOUT_FILE, MODEL_FILE, WEIGHTS_FILE
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
    first, second = int(_TRAINED * len(rows)), int(_VALIDATED * len(rows))
    parts = rows.part(0, first), rows.part(first, second), rows.part(second, len(rows))
    train_part, validation, test = parts
    shape, recipe = _shape(known), Recipe(dropped=_DROPPED, seed=wanted.seed)
    with progress.of("baselines", "fitting the baselines: popularity, logistic regression"):
        regression = logistic_regression(train_part, test, shape.table_rows)
    models = {
        "popularity": quality(test.labels, features.like_shares(test)),
        "logistic regression": quality(test.labels, regression),
    }
    text = f"training a DLRM on {len(train_part):,} ratings"
    with progress.of("training", text, steps(recipe, len(train_part))):
        fitted = fit(shape, recipe, train_part, validation, progress.step)
    result = _Result(Catalogue(data, known), shape, fitted, test)
    models["DLRM, FP32"] = quality(test.labels, result.scores)
    split = _split(data, parts)
    with progress.of("export", "exporting with INT8 tables", STEPS):
        export(_order(wanted, shape, result.trained()), lambda text: progress.step())
        int8 = artifact_scores(wanted.out, test)
    models["DLRM, INT8"] = quality(test.labels, int8)
    report = Report(DATA, wanted.seed, split, fitted.aucs, models, progress.seconds)
    report.write(wanted.out)
    return report


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


def _split(data: files.MovieLens, parts: tuple[Rows, ...]) -> dict[str, Any]:
    """Say how many ratings each part has, from when to when (Unix, seconds)."""
    stops = np.cumsum([len(part) for part in parts]).tolist()
    times = data.ratings.time_s
    return {
        name: {
            "ratings": len(part),
            "like_share": round(float(part.labels.mean()), 4),
            "from_s": int(times[stop - len(part)]),
            "to_s": int(times[stop - 1]),
        }
        for name, part, stop in zip(("train", "validation", "test"), parts, stops, strict=True)
    }


class _Result:
    """A fitted model and what is needed to show and to check it."""

    def __init__(
        self, shown: Catalogue, shape: DlrmShape, fitted: Fitted, test: Rows
    ) -> None:
        self._catalogue, self._shape, self._fitted, self._test = shown, shape, fitted, test
        self.scores = score(fitted.dlrm, shape, test)

    def trained(self) -> Trained:
        user, movies = self._example()
        state = {name: one.contiguous() for name, one in self._fitted.dlrm.state_dict().items()}

        def beside(folder: Path) -> None:
            save_file(state, folder / WEIGHTS_FILE)
            write_rows(folder / HELDOUT_FILE, self._test, fp32=self.scores)
            catalogue.write(folder, self._catalogue, self._catalogue.note(user, movies))

        return Trained(
            state=state,
            weights=f"trained on {DATA}, epoch {np.argmax(self._fitted.aucs) + 1}",
            golden=self._golden().inputs,
            example=self._catalogue.request(user, movies) + "\n",
            beside=beside,
        )

    def _golden(self) -> Rows:
        """Return held-out rows from the lowest score to the highest."""
        ranks = np.linspace(0, len(self.scores) - 1, GOLDEN_ROWS).astype(np.int64)
        return self._test.take(np.argsort(self.scores, kind="stable")[ranks])

    def _example(self) -> tuple[int, list[int]]:
        user = self._catalogue.example_user()
        movies = self._catalogue.candidates(user)
        rows = self._catalogue.rows(user, movies)
        scores = score(self._fitted.dlrm, self._shape, rows)
        return user, catalogue.shown(scores.tolist(), movies)


def artifact_scores(folder: Path, rows: Rows) -> Array:
    """Return the scores of the artifact's own graph, on the host's CPU."""
    module = load_module(folder / MODEL_FILE, torch.device("cpu"))
    parts = [rows.part(at, min(at + 2048, len(rows))) for at in range(0, len(rows), 2048)]
    with torch.inference_mode():
        host = torch.device("cpu")
        return np.concatenate([module(tensors(p.inputs, host))[OUTPUT].numpy() for p in parts])
