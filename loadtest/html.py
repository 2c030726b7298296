"""One page with the tables and plots of a result, which needs nothing beside itself."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from loadtest.figures import labelled
from loadtest.histogram import Histogram
from loadtest.lab.svg import COLORS, Panel, Series, chart

_STYLE = (
    "body{font:14px system-ui,sans-serif;max-width:900px;margin:2em auto;color-scheme:light dark}"
    "table{border-collapse:collapse}td,th{padding:2px 10px;text-align:right}"
    "td:first-child,th:first-child{text-align:left}pre{overflow:auto;font-size:12px}"
    ".bad{color:#c9485b}"
)
_COLUMNS = (
    "requests", "errors", "requests_per_s", "samples_per_s", "p50_ms", "p90_ms", "p99_ms",
    "p999_ms", "max_ms", "goodput_per_s",
)  # fmt: skip
# More lines than that, and a plot says nothing.
_MOST_LINES = 8

Run = Mapping[str, Any]


def page(document: Mapping[str, Any]) -> str:
    """Return the page for ``document``, the content of a JSON result."""
    runs: list[Run] = [{**run, "number": n} for n, run in enumerate(document["runs"], 1)]
    drawn = [run for run in runs if "windows" in run and run["requests"]]
    sampled = [run for run in runs if run.get("samples")]
    command = " ".join(document["manifest"]["command"])
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(command)}</title>',
        f"<style>{_STYLE}</style><h1>narsil bench</h1><pre>{escape(command)}</pre>",
        _table(runs),
        *(chart(panels) for panels in _panels(drawn)),
        *(chart(_server_side(sampled[:_MOST_LINES])) for _ in sampled[:1]),
        _generator(document["generator_alone"]),
        f"<h2>Manifest</h2><pre>{escape(json.dumps(document['manifest'], indent=1))}</pre>",
    ]
    return "\n".join(parts) + "\n"


def _table(runs: Sequence[Run]) -> str:
    columns = [name for name in _COLUMNS if any(name in run for run in runs)]
    head = "".join(f"<th>{name.replace('_', ' ')}</th>" for name in columns)
    rows = []
    for run in runs:
        cells = "".join(f"<td>{run.get(name, '')}</td>" for name in columns)
        invalid = escape("; ".join(run.get("invalid", ())))
        bad = f' <span class="bad">INVALID: {invalid}</span>' if invalid else ""
        rows.append(f"<tr><td>{run['number']}. {escape(labelled(run))}{bad}</td>{cells}")
    return f"<table><tr><th></th>{head}</tr>{''.join(rows)}</table>"


def _generator(alone: Sequence[Run]) -> str:
    lines = "".join(f"<li>{escape(json.dumps(found))}" for found in alone)
    return f"<h2>The generator alone</h2><ul>{lines}</ul>"


def _panels(runs: Sequence[Run]) -> list[list[Panel]]:
    if not runs:
        return []
    shown = runs[:_MOST_LINES]
    over_time = [
        _over_time(shown, "requests_per_s", "answers a second"),
        _over_time(shown, "p99_ms", "p99 (ms)"),
    ]
    offered = [run for run in runs if run.get("rate")]
    return [
        [_curve(runs)],
        *([_plateau(offered)] for _ in offered[:1]),
        [_distribution(shown)],
        over_time,
    ]


def _curve(runs: Sequence[Run]) -> Panel:
    places = sorted(runs, key=lambda run: float(run["requests_per_s"]))
    rates = [run["requests_per_s"] for run in places]
    lines = [
        Series(name, rates, [run[f"{name}_ms"] for run in places], color)
        for name, color in zip(("p50", "p99", "p999"), COLORS, strict=False)
    ]
    return Panel("Latency and throughput", "requests/s", "response (ms)", tuple(lines))


def _plateau(runs: Sequence[Run]) -> Panel:
    """Return what is answered of what is asked: a server that holds its ground goes flat."""
    places = sorted(runs, key=lambda run: float(run["rate"]))
    rates = [run["rate"] for run in places]
    lines = [
        Series("offered", [0.0, rates[-1]], [0.0, rates[-1]], COLORS[-1], dashed=True),
        Series("answered", rates, [run["requests_per_s"] for run in places], COLORS[0]),
    ]
    if all("goodput_per_s" in run for run in places):
        in_time = [run["goodput_per_s"] for run in places]
        lines.append(Series("in time", rates, in_time, COLORS[1]))
    return Panel("Overload", "requests/s offered", "answers/s", tuple(lines))


def _distribution(runs: Sequence[Run]) -> Panel:
    lines = []
    for run, color in _colored(runs):
        latencies_s, shares = Histogram.unpacked(run["response_histogram"]).curve()
        step = max(1, len(shares) // 200)
        kept = slice(None, None, step)
        x = [latency * 1e3 for latency in latencies_s[kept]]
        lines.append(
            Series(f"run {run['number']}", x, [100 * share for share in shares[kept]], color)
        )
    return Panel("Distribution", "response (ms)", "answered within (%)", tuple(lines))


def _over_time(runs: Sequence[Run], name: str, label: str) -> Panel:
    lines = [
        Series(
            f"run {run['number']}",
            [(number + 1) * run["window_s"] for number in range(len(run["windows"]))],
            [window.get(name, 0.0) for window in run["windows"]],
            color,
        )
        for run, color in _colored(runs)
    ]
    return Panel(f"{label} over time", "seconds", label, tuple(lines))


def _server_side(runs: Sequence[Run]) -> list[Panel]:
    """Return what the server's metrics said: batches and the queue, over time."""
    shown = {"batch_rows": "rows a batch", "queue_ms": "wait in the queue (ms)",
             "queued_rows": "rows waiting"}  # fmt: skip
    panels = []
    for name, label in shown.items():
        lines = [
            Series(f"run {run['number']}", [one["at_s"] for one in run["samples"]],
                   [one[name] for one in run["samples"]], color)
            for run, color in _colored(runs)
        ]  # fmt: skip
        panels.append(Panel(f"{label}, by the server", "seconds", label, tuple(lines)))
    return panels


def _colored(runs: Sequence[Run]) -> list[tuple[Run, str]]:
    return [(run, COLORS[number % len(COLORS)]) for number, run in enumerate(runs)]
