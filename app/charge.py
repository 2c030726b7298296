"""Charge each request with all that its batch took, as Triton's statistics have it."""

import numpy as np

from app.pending import Batches
from transports.statistics import ModelFigures


def charge(figures: ModelFigures, batches: Batches) -> None:
    """Add ``batches`` to the figures of their version."""
    requests = int(batches.requests.sum())
    figures.queue.add(requests, float(batches.queue_s.sum()))
    figures.gather.add(requests, float(batches.requests @ batches.gather_s))
    figures.compute.add(requests, float(batches.requests @ batches.compute_s))
    figures.rows += int(batches.rows.sum())
    figures.batches += len(batches.rows)
    sizes, which, counts = np.unique(batches.rows, return_inverse=True, return_counts=True)
    gathers_s = np.bincount(which, batches.gather_s)
    computes_s = np.bincount(which, batches.compute_s)
    columns = (sizes, counts, gathers_s, computes_s)
    for rows, count, gather_s, compute_s in zip(*(each.tolist() for each in columns), strict=True):
        same = figures.by_rows[int(rows)]
        same.gather.add(count, gather_s)
        same.compute.add(count, compute_s)
