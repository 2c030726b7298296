"""What serves a loaded model, wherever it computes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from scheduler.types import Array, Batch

CPU = "cpu"
# Puts a batch where its lane reads it; computes that.
Gather: TypeAlias = Callable[[Batch], Any]
RunGathered: TypeAlias = Callable[[Any], Mapping[str, Array]]


@dataclass(frozen=True, slots=True, eq=False)
class Serving:
    """What serves a model: each lane computes, one at a time, what any gather has gathered.

    ``make_gather`` returns a gather with host buffers of its own, for one batch at a time.
    ``warmed_rows`` are numbers of rows whose first forward takes longer than the others.
    """

    lanes: Sequence[RunGathered]
    make_gather: Callable[[], Gather]
    most_rows: int
    properties: Mapping[str, str]
    warmed_rows: Sequence[int] = ()
