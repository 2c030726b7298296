"""What a trained model has to beat: popularity, and logistic regression on the same features."""

import numpy as np
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from backends.torch_dlrm.train.rows import Floats, Rows
from scheduler.types import Array

# The best of 0.003 to 1 on the validation part.
_REGULARISATION = 0.01
_ITERATIONS = 100


def quality(labels: Array, scores: Array) -> dict[str, float]:
    """Return AUC and log loss of ``scores``."""
    return {
        "auc": float(roc_auc_score(labels, scores)),
        "log_loss": float(log_loss(labels, np.asarray(scores, np.float64))),
    }


def logistic_regression(fitted: Rows, scored: Rows, table_rows: tuple[int, ...]) -> Array:
    """Fit on ``fitted`` and return the scores of ``scored``.

    Every id of every table has a weight, bags are scaled by the root of their length, and the
    dense columns are standardised.
    """
    mean, deviation = fitted.moments()
    wide, asked = (_matrix(rows, table_rows, mean, deviation) for rows in (fitted, scored))
    model = LogisticRegression(C=_REGULARISATION, max_iter=_ITERATIONS)
    model.fit(wide, fitted.labels)
    scores: Array = model.predict_proba(asked)[:, 1]
    return scores


def _matrix(rows: Rows, table_rows: tuple[int, ...], mean: Floats, deviation: Floats) -> object:
    parts = [sparse.csr_matrix((rows.dense - mean) / deviation)]
    stops = np.cumsum(rows.lengths.sum(axis=1))
    per_table = np.split(rows.values, stops[:-1])
    for lengths, ids, width in zip(rows.lengths, per_table, table_rows, strict=True):
        weights = np.repeat(1 / np.sqrt(np.maximum(lengths, 1)), lengths)
        ends = np.concatenate([[0], np.cumsum(lengths)])
        parts.append(sparse.csr_matrix((weights, ids, ends), shape=(len(rows), width)))
    return sparse.hstack(parts).tocsr()
