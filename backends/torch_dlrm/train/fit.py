"""Train a TorchRec DLRM on labelled rows, and keep the best of its epochs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.optim.swa_utils import AveragedModel
from torchrec.models.dlrm import DLRM
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from backends.torch_dlrm.export.model import build, scores
from backends.torch_dlrm.export.presets import DlrmShape
from backends.torch_dlrm.train.rows import Floats, Rows
from scheduler.types import Array

_TABLES = "embedding_bags"
_FIRST = "dense_arch.model._mlp.0._linear"
_SCORED_ROWS = 4096


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to train. ``dropped`` is the share of a feature's ids left out of each batch.

    Decay is AdamW's, of every weight at every step: rare ids are pulled back to nothing. What is
    scored and kept is a running average of the weights, the last step's counting 1 - ``averaged``.
    """

    epochs: int = 8
    patience: int = 3
    batch_rows: int = 1024
    learning_rate: float = 2e-3
    table_decay: float = 8.0
    dense_decay: float = 0.1
    table_deviation: float = 0.02
    averaged: float = 0.99
    dropped: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """A trained model, and the AUC of the validation part after each epoch."""

    dlrm: DLRM
    aucs: tuple[float, ...]

    @property
    def best(self) -> int:
        """Return which epoch's model it is, counted from 1."""
        return _best(self.aucs)


def fit(
    shape: DlrmShape, recipe: Recipe, train: Rows, validation: Rows, step: Callable[[], None]
) -> Fitted:
    """Train until ``recipe.patience`` epochs bring nothing; ``step`` is called after each batch.

    The dense columns are standardised for training; the model returned takes them as they are. One
    thread: batches are small, and threads that wait for each other take ten times as long where
    the CPUs are shared.
    """
    with _one_thread():
        return _fit(shape, recipe, train, validation, step)


def _fit(
    shape: DlrmShape, recipe: Recipe, train: Rows, validation: Rows, step: Callable[[], None]
) -> Fitted:
    mean, deviation = train.moments()
    train, validation = (
        replace(rows, dense=(rows.dense - mean) / deviation) for rows in (train, validation)
    )
    dlrm = _initial(shape, recipe)
    epoch = _Epoch(dlrm, shape, recipe, train, step)
    aucs: list[float] = []
    best: dict[str, torch.Tensor] = {}
    while len(aucs) < recipe.epochs and len(aucs) - _best(aucs) <= recipe.patience:
        epoch.run()
        scored = score(epoch.average, shape, validation)
        aucs.append(float(roc_auc_score(validation.labels, scored)))
        if _best(aucs) == len(aucs):
            best = {name: tensor.clone() for name, tensor in epoch.average.state_dict().items()}
    dlrm.load_state_dict(best)
    _take_raw_columns(dlrm, mean, deviation)
    return Fitted(dlrm, tuple(aucs))


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def score(dlrm: DLRM, shape: DlrmShape, rows: Rows) -> Array:
    """Return the FP32 model's scores."""
    starts = range(0, len(rows), _SCORED_ROWS)
    parts = (rows.part(start, min(start + _SCORED_ROWS, len(rows))) for start in starts)
    return np.concatenate([scores(dlrm, shape, part.inputs).numpy() for part in parts])


def steps(recipe: Recipe, rows: int) -> int:
    """Return how many batches ``fit`` takes at most."""
    return recipe.epochs * -(-rows // recipe.batch_rows)


def _best(aucs: Sequence[float]) -> int:
    """Return which epoch was the best, counted from 1."""
    return int(np.argmax(aucs)) + 1 if aucs else 0


def _initial(shape: DlrmShape, recipe: Recipe) -> DLRM:
    # The layers' own initialisation draws from PyTorch's general generator: leave that as it was.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        dlrm = build(shape)
        for name, parameter in dlrm.named_parameters():
            if _TABLES in name:
                torch.nn.init.normal_(parameter, 0.0, recipe.table_deviation)
    return dlrm


class _Epoch:
    """One pass over the rows in a new order, as often as it is run."""

    def __init__(
        self, dlrm: DLRM, shape: DlrmShape, recipe: Recipe, rows: Rows, step: Callable[[], None]
    ) -> None:
        self._dlrm, self._features, self._recipe = dlrm, list(shape.features), recipe
        self._rows, self._step = rows, step
        self._random = np.random.default_rng(recipe.seed)
        self._dropped = {
            shape.features.index(name): share for name, share in recipe.dropped.items()
        }
        named = dict(dlrm.named_parameters())
        tables = [named[name] for name in named if _TABLES in name]
        dense = [named[name] for name in named if _TABLES not in name]
        groups = [
            {"params": tables, "weight_decay": recipe.table_decay},
            {"params": dense, "weight_decay": recipe.dense_decay},
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate)
        self._averaged = AveragedModel(dlrm, avg_fn=_averaging(recipe.averaged))

    @property
    def average(self) -> DLRM:
        """Return the model of the averaged weights."""
        return self._averaged.module

    def run(self) -> None:
        """Train on every row once."""
        order = self._random.permutation(len(self._rows))
        for start in range(0, len(order), self._recipe.batch_rows):
            rows = self._rows.take(order[start : start + self._recipe.batch_rows])
            self._learn(rows.thinned(self._dropped, self._random))
            self._step()

    def _learn(self, rows: Rows) -> None:
        ids = KeyedJaggedTensor(
            keys=self._features,
            values=torch.from_numpy(rows.values),
            lengths=torch.from_numpy(rows.lengths.reshape(-1)),
        )
        logits = self._dlrm(torch.from_numpy(rows.dense), ids).squeeze(1)
        loss = binary_cross_entropy_with_logits(logits, torch.from_numpy(rows.labels))
        self._optimizer.zero_grad()
        torch.autograd.backward(loss)
        self._optimizer.step()
        self._averaged.update_parameters(self._dlrm)


def _averaging(most: float) -> Callable[..., torch.Tensor]:
    """Return a running average whose first values do not count for more than the later ones."""

    def average(so_far: torch.Tensor, now: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        kept = min(most, float((count + 1) / (count + 10)))
        return so_far.lerp(now, 1 - kept)

    return average


@torch.no_grad()
def _take_raw_columns(dlrm: DLRM, mean: Floats, deviation: Floats) -> None:
    """Put the standardisation into the first dense layer, so that no client need know of it."""
    layer = dlrm.get_submodule(_FIRST)
    layer.weight.div_(torch.from_numpy(deviation))
    layer.bias.sub_(layer.weight @ torch.from_numpy(mean))
