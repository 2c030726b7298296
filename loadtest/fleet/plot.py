"""The measured curve and the simulated one as a picture."""

from collections.abc import Sequence

from loadtest.fleet.pair import Pair
from loadtest.lab.svg import COLORS, Panel, Series, chart


def drawn(pairs: Sequence[Pair]) -> str:
    """Return the SVG: latencies by the rate that was asked for, and by the requests in flight."""
    opened = [pair for pair in pairs if pair.point["rate"]]
    closed = [pair for pair in pairs if not pair.point["rate"]]
    rates = [pair.point["rate"] for pair in opened]
    crowds = [float(pair.point["in_flight"]) for pair in closed]
    return chart([
        _panel("Open loop: latency by rate", "requests/s", rates, opened),
        _panel("Closed loop: latency by requests in flight", "in flight", crowds, closed),
    ])  # fmt: skip


def _panel(title: str, x_label: str, x: Sequence[float], pairs: Sequence[Pair]) -> Panel:
    lines = []
    for name, color in zip(("p50_ms", "p90_ms"), COLORS, strict=False):
        short = name.removesuffix("_ms")
        measured = [pair.measured[name] for pair in pairs]
        simulated = [pair.simulated[name] for pair in pairs]
        lines.append(Series(f"{short}, measured", x, measured, color))
        lines.append(Series(f"{short}, simulated", x, simulated, color, dashed=True))
    return Panel(title, x_label, "ms", tuple(lines))
