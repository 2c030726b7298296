"""``narsil bench compare A.json [B.json]``: ratios, and what chance may make of them."""

import argparse
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadtest.figures import labelled

_LABELS = ("wire", "rows", "concurrency", "arrivals", "rate")
# Name, and whether more of it is better.
_METRICS = {"requests_per_s": True, "p50_ms": False, "p99_ms": False}
_HEAD = ("", "A", "B", "B by A", "95 % interval", "", "over")
_GAP = "  "
_RESAMPLES = 2000
_LEAST_REPEATS = 3
WORSE = 4

Values = npt.NDArray[np.float64]


def main(argv: Sequence[str]) -> int:
    """Print a table of ratios (B by A); exit code 4 if B is worse than is allowed."""
    parser = argparse.ArgumentParser(
        prog="narsil bench compare",
        description="Compare runs of the same labels: B by A, with a bootstrapped 95 % interval.",
    )
    parser.add_argument("a", type=Path)
    parser.add_argument(
        "b", type=Path, nargs="?", help="(default: A's own second URL, by its first)"
    )
    parser.add_argument(
        "--worse", type=float, help="share by which B may be worse, interval and all, as 0.05"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a ratio, no table")
    arguments = parser.parse_args(argv)
    try:
        runs = _runs(arguments.a)
        a, b = (runs, _runs(arguments.b)) if arguments.b else _by_url(runs)
        lines = compared(a, b)
    except (ValueError, LookupError, TypeError) as error:
        print(f"narsil bench compare: {error}", file=sys.stderr)
        return 2
    if not lines:
        print(f"narsil bench compare: {_nothing_alike(a, b)}", file=sys.stderr)
        return 2
    print("\n".join(map(json.dumps, lines)) if arguments.json else table(lines))
    _say_invalid(a, b)
    limit = arguments.worse
    return WORSE if limit is not None and any(_worse(line, limit) for line in lines) else 0


def compared(
    a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return B's median by A's, with its interval, for each setting that both have."""
    lines = []
    ours, theirs = _grouped(a), _grouped(b)
    for labels in [labels for labels in ours if labels in theirs]:
        for metric in _METRICS:
            unit, left, right = _samples(ours[labels], theirs[labels], metric)
            if len(left) and len(right):
                low, high = interval(left, right)
                lines.append({
                    **dict(labels),
                    "metric": metric,
                    "a": round(float(np.median(left)), 4),
                    "b": round(float(np.median(right)), 4),
                    "ratio": round(float(np.median(right) / np.median(left)), 4),
                    "low": round(low, 4),
                    "high": round(high, 4),
                    "over": f"{len(left)} and {len(right)} {unit}",
                })  # fmt: skip
    return lines


def _nothing_alike(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]) -> str:
    """Say which settings each side has: compared are only those that both have."""
    ours, theirs = (
        "; ".join(labelled(dict(labels)) for labels in _grouped(runs)) for runs in (a, b)
    )
    return f"no setting is in both; A has {ours or 'no runs'}. B has {theirs or 'no runs'}"


def _say_invalid(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]) -> None:
    """Say which settings were measured by a generator that was the bottleneck."""
    for side, runs in (("A", a), ("B", b)):
        named = dict.fromkeys(
            labelled({name: run[name] for name in _LABELS if name in run})
            for run in runs
            if run.get("invalid")
        )
        if named:
            print(
                f"narsil bench compare: INVALID in {side}, the generator was the bottleneck: "
                f"{'; '.join(named)}",
                file=sys.stderr,
            )


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return ``lines`` as a table to read: under each setting a row a metric."""
    rows: list[Sequence[str]] = [_HEAD]
    for setting, group in itertools.groupby(lines, labelled):
        rows.append((setting,))
        rows += [_row(line) for line in group]
    wide = [row for row in rows if len(row) > 1]
    widths = [max(map(len, column)) for column in zip(*wide, strict=True)]
    return "\n".join(
        _GAP.join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in rows
    )


def _row(line: Mapping[str, Any]) -> Sequence[str]:
    return (
        f"{_GAP}{line['metric']}",
        *(f"{line[side]:,.4g}" if line[side] < 1000 else f"{line[side]:,.0f}" for side in "ab"),
        f"{line['ratio']:.3f}",
        f"{line['low']:.3f} to {line['high']:.3f}",
        _verdict(line),
        line["over"],
    )


def _verdict(line: Mapping[str, Any]) -> str:
    if line["low"] <= 1 <= line["high"]:
        return "no difference seen"
    return "better" if (line["low"] > 1) == _METRICS[line["metric"]] else "worse"


def interval(a: Values, b: Values, seed: int = 0) -> tuple[float, float]:
    """Return the bootstrapped 95 % interval of median(b) / median(a)."""
    rng = np.random.default_rng(seed)

    def medians(values: Values) -> Values:
        drawn = rng.integers(0, len(values), (_RESAMPLES, len(values)))
        return np.asarray(np.median(values[drawn], axis=1), np.float64)

    low, high = np.percentile(medians(b) / medians(a), [2.5, 97.5])
    return float(low), float(high)


def _runs(path: Path) -> list[Mapping[str, Any]]:
    try:
        runs: list[Mapping[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["runs"]
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a result of narsil bench --json: {error}") from error
    return [run for run in runs if run["requests"]]


def _by_url(
    runs: Sequence[Mapping[str, Any]],
) -> tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]:
    urls = list(dict.fromkeys(run["url"] for run in runs if "url" in run))
    if len(urls) != 2:
        raise ValueError(f"one file alone must be of two URLs, it is of {len(urls)}")
    first, second = ([run for run in runs if run.get("url") == url] for url in urls)
    return first, second


def _grouped(
    runs: Sequence[Mapping[str, Any]],
) -> dict[tuple[tuple[str, Any], ...], list[Mapping[str, Any]]]:
    grouped: dict[tuple[tuple[str, Any], ...], list[Mapping[str, Any]]] = {}
    for run in runs:
        labels = tuple((name, run[name]) for name in _LABELS if name in run)
        grouped.setdefault(labels, []).append(run)
    return grouped


def _samples(
    a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]], metric: str
) -> tuple[str, Values, Values]:
    if min(len(a), len(b)) >= _LEAST_REPEATS:
        return "repeats", _values(a, metric), _values(b, metric)
    # Neighbouring windows are alike, so this interval is too narrow; the line says "windows".
    windows = [[part for run in runs for part in run.get("windows", ())] for runs in (a, b)]
    return "windows", _values(windows[0], metric), _values(windows[1], metric)


def _values(parts: Sequence[Mapping[str, Any]], metric: str) -> Values:
    return np.array([part[metric] for part in parts if part.get(metric)], np.float64)


def _worse(line: Mapping[str, Any], limit: float) -> bool:
    if _METRICS[line["metric"]]:
        return bool(line["high"] < 1 / (1 + limit))
    return bool(line["low"] > 1 + limit)
