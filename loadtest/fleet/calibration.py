"""What was measured of one server, as a file, and the simulated box that it makes."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loadtest.fleet.box import Box, Service
from loadtest.fleet.draws import constant

# Batches of about a size are one point: a factor of this wide.
_BIN = 1.25


@dataclass(frozen=True, slots=True)
class Shared:
    """What is known besides of a server with one processor for its event loop and its lane.

    ``turn_s`` is processor time of a turn of the loop beside the requests in it, ``yield_s`` what
    the loop waits for the processor, a request. ``wire_s`` is a lone request's beyond the server's
    work, ``client_s`` its client's processor time. ``enough_s`` is what a batch may take to grow no
    further; files from before that rule have none.
    """

    turn_s: float
    yield_s: float
    wire_s: float
    client_s: float
    enough_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Calibration:
    """Medians over the rounds. ``points`` are (rows, seconds) of batches.

    ``hop_s`` is from a lone request's arrival to its lane, ``loop_s`` the event loop's processor
    time a request, ``lone_s`` what a lone request of ``rows`` takes by its client's clock (mean).
    With ``shared`` the seconds of batches are processor time, and ``loop_s`` has no turns in it.
    """

    backend: str
    lanes: int
    max_batch_rows: int
    rows: int
    points: tuple[tuple[int, float], ...]
    hop_s: float
    loop_s: float
    lone_s: float
    shared: Shared | None = None

    def box(self) -> Box:
        """Return the simulated server.

        A request costs the loop twice what its answer does. What a lone request takes beyond all
        that is known is the wire's.
        """
        service = service_of(self.points)
        if self.shared:
            return Box(
                service=service,
                max_batch_rows=self.max_batch_rows,
                read_s=self.loop_s * 2 / 3,
                write_s=self.loop_s / 3,
                wire_s=self.shared.wire_s,
                shared=True,
                turn_s=self.shared.turn_s,
                yield_s=self.shared.yield_s,
                enough_s=self.shared.enough_s,
            )
        known_s = service.of(self.rows) + 2 * self.hop_s + self.loop_s
        return Box(
            service=service,
            lanes=self.lanes,
            max_batch_rows=self.max_batch_rows,
            read_s=self.loop_s * 2 / 3,
            write_s=self.loop_s / 3,
            hop_s=self.hop_s,
            wire_s=max(0.0, self.lone_s - known_s),
        )

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Calibration":
        """Read what ``asdict`` made of one."""
        points = tuple((int(rows), float(seconds)) for rows, seconds in document["points"])
        shared = document.get("shared")
        besides = Shared(**shared) if shared else None
        return cls(**{**document, "points": points, "shared": besides})


def service_of(points: Sequence[Sequence[float]]) -> Service:
    """Return the service that goes through ``points``, (rows, seconds)."""
    return Service(
        tuple(int(rows) for rows, _ in points), tuple(seconds for _, seconds in points), constant
    )


def read(path: Path) -> tuple[Calibration, dict[str, Any]]:
    """Return the calibration in a file, and all of the file."""
    document = json.loads(path.read_text(encoding="utf-8"))
    return Calibration.of(document["calibration"]), document


def document_of(
    manifest: Mapping[str, object], calibration: Calibration, curve: Sequence[Mapping[str, object]]
) -> dict[str, object]:
    """Return what a file holds: manifest, calibration and the curve that was measured with it."""
    return {"manifest": manifest, "calibration": asdict(calibration), "curve": list(curve)}


def text_of(document: Mapping[str, object]) -> str:
    """Return ``document`` as a file has it: lists of numbers on one line."""
    text = json.dumps(document, indent=1)
    lines = re.sub(r"\[[-0-9.e,\s]+\]", lambda found: " ".join(found[0].split()), text)
    return lines + "\n"


def fitted(batches: Mapping[int, tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Return points through batches: seconds by rows, never less for more rows.

    ``batches`` has by rows how many there were and their seconds together. Neighbouring sizes are
    taken together, each counting as often as it occurred.
    """
    points: list[tuple[int, float]] = []
    group: list[tuple[int, int, float]] = []
    for rows in sorted(batches):
        if group and rows > group[0][0] * _BIN:
            points.append(_mean(group))
            group = []
        group.append((rows, *batches[rows]))
    points.append(_mean(group))
    rising: list[tuple[int, float]] = []
    for rows, seconds in points:
        rising.append((rows, max(seconds, rising[-1][1] if rising else 0.0)))
    return tuple(rising)


def _mean(group: Sequence[tuple[int, int, float]]) -> tuple[int, float]:
    count = sum(batches for _, batches, _ in group)
    rows = sum(rows * batches for rows, batches, _ in group) / count
    return round(rows), sum(seconds for _, _, seconds in group) / count
