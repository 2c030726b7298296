"""What has happened and is not yet counted: a thousand at once cost a fraction of one by one."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from scheduler.observer import Answered, Computed

Numbers: TypeAlias = NDArray[np.float64]

# Until they are counted all the same. Counting them is a pause of about 0.5 ms.
MOST = 1024


@dataclass(frozen=True, slots=True)
class Batches:
    """Batches of one version of a model on one lane: a number of each in every array.

    ``queue_s`` has those of all their requests, one batch after another.
    """

    rows: Numbers
    ids: Numbers
    requests: Numbers
    gather_s: Numbers
    compute_s: Numbers
    queue_s: Numbers


def batches_of(records: Sequence[Computed]) -> Batches:
    """Return the figures of ``records``, of which there is at least one."""
    table = np.array(
        [(one.rows, one.ids, len(one.queue_s), one.gather_s, one.compute_s) for one in records],
        float,
    )
    rows, ids, requests, gather_s, compute_s = table.T
    queue_s = np.fromiter(chain.from_iterable([one.queue_s for one in records]), float)
    return Batches(rows, ids, requests, gather_s, compute_s, queue_s)


class Pending:
    """Good answers and batches as they were told: the serving path only appends to these lists."""

    def __init__(self) -> None:
        self.answered: list[Answered] = []
        self.computed: list[Computed] = []

    def take_answered(self) -> dict[tuple[str, str, str], list[float]]:
        """Return what the answers took by model, version and transport, and forget them."""
        durations_s: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
        for one in self.answered:
            durations_s[one.model, one.version, one.transport].append(one.duration_s)
        self.answered.clear()
        return durations_s

    def take_computed(self) -> dict[tuple[str, str, int], list[Computed]]:
        """Return the batches by model, version and lane, and forget them."""
        batches: defaultdict[tuple[str, str, int], list[Computed]] = defaultdict(list)
        for one in self.computed:
            batches[one.model, one.version, one.lane].append(one)
        self.computed.clear()
        return batches
