"""The overload run as a picture: what is answered in time, what is not, and how long it takes."""

from collections.abc import Sequence

from loadtest.lab.svg import COLORS, Panel, Series, chart

Line = dict[str, float | str]


def plot(lines: Sequence[Line], capacity: float, timeout_ms: float, note: str = "") -> str:
    """Return an SVG of ``lines``: solid with prediction of lateness, dashed without.

    ``note`` stands in its title: what has to be known of the run.
    """
    return chart(
        (
            Panel(
                f"Answered in time ({note})" if note else "Answered in time",
                "offered load, multiples of capacity",
                "requests/s",
                _series(lines, {"answered in time": "goodput"}),
                (capacity, "capacity"),
            ),
            Panel(
                "Not answered",
                "offered load, multiples of capacity",
                "requests/s",
                _series(lines, {"refused": "refused", "expired": "expired"}),
            ),
            Panel(
                "Latency of what was accepted, from the intended send",
                "offered load, multiples of capacity",
                "ms",
                _series(lines, {"p50": "accepted_p50_ms", "p99": "accepted_p99_ms"}),
                (timeout_ms, "timeout"),
                most=2 * timeout_ms,
            ),
        )
    )


def _series(lines: Sequence[Line], fields: dict[str, str]) -> tuple[Series, ...]:
    found = []
    for (name, field), color in zip(fields.items(), COLORS, strict=False):
        for state in ("on", "off"):
            chosen = [line for line in lines if line["refuse_late"] == state]
            x, y = ([float(line[key]) for line in chosen] for key in ("load", field))
            label = name if state == "on" else f"{name}, off"
            found.append(Series(label, x, y, color, dashed=state == "off"))
    return tuple(found)
