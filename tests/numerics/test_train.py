"""``narsil train``'s fit and baselines, on rows whose labels can be learned."""

import numpy as np
import pytest

from backends.torch_dlrm.export.presets import DlrmShape
from backends.torch_dlrm.export.quiet import quiet
from backends.torch_dlrm.train.rows import Rows

SHAPE = DlrmShape(
    features=("left", "right"),
    table_rows=(6, 6),
    dim=4,
    dense_names=("small", "large"),
    dense_layers=(8, 4),
    over_layers=(8, 1),
)


def drawn(count: int, seed: int) -> Rows:
    """Return rows that are liked if their two ids are both even or both odd."""
    random = np.random.default_rng(seed)
    ids = random.integers(0, 6, (2, count))
    dense = random.standard_normal((count, 2)).astype(np.float32) * [1, 50] + [0, 1000]
    labels = ((ids[0] + ids[1]) % 2 == 0).astype(np.float32)
    return Rows(dense.astype(np.float32), np.ones((2, count), np.int64), ids.ravel(), labels)


def test_a_dlrm_learns_what_no_logistic_regression_can_and_takes_columns_as_they_are() -> None:
    with quiet():
        # Importing TorchRec warns, and here a warning is an error.
        from backends.torch_dlrm.train import fit  # noqa: PLC0415
        from backends.torch_dlrm.train.baselines import (  # noqa: PLC0415
            logistic_regression,
            quality,
        )

    train, validation, test = drawn(2000, 1), drawn(500, 2), drawn(500, 3)
    recipe = fit.Recipe(epochs=4, batch_rows=50, learning_rate=0.02, table_decay=0.0,
                        table_deviation=0.5, patience=6)  # fmt: skip
    steps: list[None] = []
    fitted = fit.fit(SHAPE, recipe, train, validation, lambda: steps.append(None))
    assert len(steps) == fit.steps(recipe, len(train)) == 4 * 40
    assert fitted.aucs[fitted.best - 1] == max(fitted.aucs)
    ours = quality(test.labels, fit.score(fitted.dlrm, SHAPE, test))
    linear = quality(test.labels, logistic_regression(train, test, SHAPE.table_rows))
    assert ours["auc"] > 0.9
    assert linear["auc"] < 0.6
    assert ours["log_loss"] < linear["log_loss"]
    # The standardisation is inside the model now: the same rows scored as the validation was.
    scored = quality(validation.labels, fit.score(fitted.dlrm, SHAPE, validation))
    assert scored["auc"] == pytest.approx(max(fitted.aucs), abs=1e-3)
