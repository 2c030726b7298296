"""``python -m loadtest.lab.curve OUT.svg RESULT.json ...``: latency by throughput, a line a wire.

``RESULT.json`` is what ``narsil bench --json`` wrote, or what ``--keep`` left of it: figures and
manifest without histograms, small enough to commit.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.lab.svg import COLORS, Panel, Series, chart

_KEPT = ("wire", "rows", "concurrency", "rate", "arrivals", "requests", "errors", "mismatches",
         "requests_per_s", "samples_per_s", "p50_ms", "p99_ms", "invalid")  # fmt: skip


def kept(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest and the figures alone."""
    runs = [{name: run[name] for name in _KEPT if name in run} for run in document["runs"]]
    return {"manifest": document["manifest"], "runs": runs}


def joined(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one document with the runs of all, and the first's manifest."""
    runs = [run for document in documents for run in document["runs"]]
    return {"manifest": documents[0]["manifest"], "runs": runs}


def drawn(document: Mapping[str, Any]) -> str:
    """Return the SVG of p50 and p99 (ms) by samples a second."""
    panels = []
    for figure in ("p50", "p99"):
        lines = []
        wires = dict.fromkeys(run["wire"] for run in document["runs"])
        for wire, color in zip(wires, COLORS, strict=False):
            runs = [run for run in document["runs"] if run["wire"] == wire and run["requests"]]
            x = [run["samples_per_s"] / 1e3 for run in runs]
            lines.append(Series(wire, x, [run[f"{figure}_ms"] for run in runs], color))
        label = "thousand samples/s"
        panels.append(Panel(f"{figure} by throughput", label, f"{figure} (ms)", tuple(lines)))
    return chart(panels)


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the results in one picture."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.lab.curve")
    parser.add_argument("svg", type=Path)
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--keep", type=Path, help="file to write the figures alone to")
    arguments = parser.parse_args(argv)
    texts = [path.read_text(encoding="utf-8") for path in arguments.results]
    document = kept(joined([json.loads(text) for text in texts]))
    if arguments.keep:
        arguments.keep.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    arguments.svg.write_text(drawn(document), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
