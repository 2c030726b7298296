"""The figures of a run, as they are printed and written."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from loadtest.histogram import Histogram
from loadtest.record import Outcome

PERCENTILES = {"p50_ms": 50, "p90_ms": 90, "p99_ms": 99, "p999_ms": 99.9, "max_ms": 100}
# Of these, what a line to read has.
_SHOWN = ("p50_ms", "p90_ms", "p99_ms", "max_ms")
_WHEN = {"in_flight": "in flight at the SIGTERM", "later": "asked after it"}


def summary(outcome: Outcome, rows: float, open_loop: bool) -> dict[str, object]:
    """Return counts, rates and percentiles: the response's, and in an open loop service and lag.

    ``rows`` is the mean of a request's rows.
    """
    counts: dict[str, object] = {"requests": outcome.answered, "errors": outcome.errors}
    if outcome.errors:
        counts["error_codes"] = dict(outcome.failures.counts)
    if outcome.cancelled:
        counts["cancelled"] = outcome.cancelled
    if outcome.mismatches:
        counts["mismatches"] = outcome.mismatches
    if not outcome.answered:
        return counts
    rate = outcome.answered / outcome.elapsed_s
    figures: dict[str, object] = {
        **counts,
        "requests_per_s": round(rate, 1),
        "samples_per_s": round(rate * rows, 1),
        **_percentiles(outcome.response),
    }
    if open_loop:
        figures["offered_per_s"] = round(outcome.offered / outcome.measure_s, 1)
        figures["service"] = _percentiles(outcome.service)
        lag = _percentiles(outcome.lag)
        figures["lag"] = {name: lag[name] for name in ("p50_ms", "p99_ms", "max_ms")}
    return figures


def goodput(outcome: Outcome, limit_s: float) -> float:
    """Return requests a second that were answered within ``limit_s`` of their intended send."""
    if not outcome.answered:
        return 0.0
    within = outcome.response.share_within(limit_s) if math.isfinite(limit_s) else 1.0
    return round(within * outcome.answered / outcome.elapsed_s, 1)


def after_signal(outcome: Outcome) -> dict[str, dict[str, int]]:
    """Return what became of requests in flight at the SIGTERM, and of later ones, by status."""
    return {
        when: {status: n for (phase, status), n in outcome.ends.items() if phase == when}
        for when in ("in_flight", "later")
    }


def detail(outcome: Outcome) -> dict[str, object]:
    """Return what only the JSON file holds: histograms and the figures over time."""
    return {
        "response_histogram": outcome.response.packed(),
        "service_histogram": outcome.service.packed(),
        "lag_histogram": outcome.lag.packed(),
        "generator_cpu_s": round(outcome.cpu_s, 3),
        "windows": [
            {"requests_per_s": round(window.total / outcome.window_s, 1), **_percentiles(window)}
            for window in outcome.windows
        ],
        "window_s": outcome.window_s,
    }


def labelled(run: Mapping[str, object]) -> str:
    """Return what was measured in ``run``, in a few words."""
    load = f", {run['concurrency']} in flight" if "concurrency" in run else ""
    if "rate" in run:
        load = f", {run['arrivals']} {run['rate']:g}/s"
    place = f" {run['url']}" if "url" in run else ""
    return f"{run['wire']}{place}, {run['rows']} rows{load}"


def sentence(run: Mapping[str, Any]) -> str:
    """Return what came of ``run``, its labels and figures, as a line to read."""
    parts = ["probe"] if run.get("probe") else []
    if "requests_per_s" in run:
        rate, samples = run["requests_per_s"], run["samples_per_s"]
        parts.append(f"{rate:,.0f} requests/s, {samples:,.0f} samples/s")
        times = (f"{name[:-3]} {run[name]:.3g}" for name in _SHOWN if name in run)
        parts.append(f"{', '.join(times)} ms")
    counted = ("errors", "mismatches", "cancelled")
    parts += [f"{run[name]} {name}" for name in counted if run.get(name)]
    if "goodput_per_s" in run:
        parts.append(f"answered in time {run['goodput_per_s']:,.0f} requests/s")
    if "slo" in run:
        parts.append(f"{run['slo']} {'kept' if run['slo_met'] else 'missed'}")
    for when, ends in run.get("after_sigterm", {}).items():
        parts.append(f"{_WHEN[when]} {_counts(ends)}")
    if "slow_readers" in run:
        parts.append(f"slow readers' requests {_counts(run['slow_readers'])}")
    parts += ["INVALID"] if run.get("invalid") else []
    return f"{labelled(run)}: {'; '.join(parts)}"


def _counts(ends: Mapping[str, int]) -> str:
    """Return how many requests ended how, "nothing" for none."""
    return ", ".join(f"{count:,} {status}" for status, count in ends.items()) or "nothing"


def sentence_alone(made: Mapping[str, Any]) -> str:
    """Return what the generator can do without a server, as a line to read."""
    alone = made["generator_alone"]
    if not isinstance(alone, str):
        alone = f"{alone['requests_per_s']:,.0f} requests/s, p50 {alone['p50_ms']:.3g} ms"
    return f"the generator alone, {made['wire']}, {made['rows']} rows: {alone}"


def _percentiles(histogram: Histogram) -> dict[str, float]:
    values = {name: histogram.percentile(percent) for name, percent in PERCENTILES.items()}
    return {name: float(np.round(value * 1e3, 4)) for name, value in values.items() if value >= 0}
