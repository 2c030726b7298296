"""What the parts have pooled, put together: whole blocks at a time."""

from collections.abc import Sequence
from dataclasses import dataclass

from backends.ray_pool.sharded.plan import Plan
from backends.ray_pool.sharded.split import Floats


@dataclass(frozen=True, slots=True)
class Run:
    """``count`` vectors of a part's rows, from ``position`` on, go to slots from ``slot`` on.

    They are added to what is there if a part before has pieces of the same tables.
    """

    slot: int
    position: int
    count: int
    adds: bool


@dataclass(frozen=True, slots=True)
class Placement:
    """``slots`` has the place of each table's vector in a row, ``runs`` those of each part.

    Tables stand in the order of the parts, so that most parts are one run.
    """

    slots: tuple[int, ...]
    runs: tuple[tuple[Run, ...], ...]


def place(plan: Plan) -> Placement:
    """Return where what ``plan`` pools goes to."""
    slots: dict[int, int] = {}
    found: list[tuple[Run, ...]] = []
    for pieces in plan:
        runs: list[Run] = []
        for position, piece in enumerate(pieces):
            adds = piece.table in slots
            slot = slots.setdefault(piece.table, len(slots))
            last = runs[-1] if runs else None
            if last and last.adds == adds and last.slot + last.count == slot:
                runs[-1] = Run(last.slot, last.position, last.count + 1, adds)
            else:
                runs.append(Run(slot, position, 1, adds))
        found.append(tuple(runs))
    return Placement(tuple(slots[table] for table in range(len(slots))), tuple(found))


def join(placement: Placement, pooled: Sequence[Sequence[Floats]], out: Floats) -> None:
    """Write into ``out`` (rows, features, dim), by slots, the sums of what each part has pooled.

    That is (rows, pieces, dim), its rows perhaps in several arrays. Sums are added in the order
    of the parts, whichever came first.
    """
    for runs, chunks in zip(placement.runs, pooled, strict=True):
        start = 0
        for sums in chunks:
            rows = out[start : start + len(sums)]
            start += len(sums)
            for run in runs:
                into = rows[:, run.slot : run.slot + run.count]
                own = sums[:, run.position : run.position + run.count]
                if run.adds:
                    into += own
                else:
                    into[...] = own
