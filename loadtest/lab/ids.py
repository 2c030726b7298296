"""What the policies of ids cost the event loop, beside the plain check of ids.

    python -m loadtest.lab.ids

26 features, one id each, all of one policy; ids in range, and one in a hundred of them without a
row. All take turns within a round; times are the quickest of the rounds, since a busy machine only
ever adds. ``ratio`` is that of the rounds' CPU times to the plain check's, in the median.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from backends.compiled.rows import settled_ids
from backends.ids.policy import Policy, parse_policy
from backends.ids.rules import IdRules, SettlesIds
from backends.jagged import JaggedLayout, check_jagged
from backends.native_dlrm.options import NativeDlrmOptions
from loadtest.lab.manifest import manifest
from loadtest.lab.tables import print_table
from scheduler.types import InferRequest

POLICIES = ("reject", "zero", "default_row:3", "clamp", "hash:modulo:7", "hash:murmur3:7")
FEATURES, TABLE_ROWS = 26, 100_000
LAYOUT = JaggedLayout(
    "ids", tuple(f"cat_{n}" for n in range(FEATURES)), np.full(FEATURES, TABLE_ROWS, np.int64)
)


def requests(rows: int, seed: int) -> dict[str, InferRequest]:
    """Return a request with every id in range, and one with some that are not."""
    random = np.random.default_rng(seed)
    ids = random.integers(0, TABLE_ROWS, FEATURES * rows)
    wild = np.where(random.random(ids.size) < 0.01, ids + TABLE_ROWS, ids)
    lengths = np.ones((FEATURES, rows), np.int64)
    return {
        name: InferRequest("", rows, {"ids.lengths": lengths, "ids.values": values})
        for name, values in (("in range", ids), ("1 % outside", wild))
    }


def calls(rows: int, seed: int, *, numpy: bool = False) -> dict[str, Callable[[], object]]:
    """Return what is measured, the plain check first."""
    asked = requests(rows, seed)
    found: dict[str, Callable[[], object]] = {
        "check_jagged, in range": lambda: check_jagged(LAYOUT, asked["in range"])
    }
    for text in POLICIES:
        policies = [parse_policy(text, TABLE_ROWS)] * FEATURES
        rules = IdRules(LAYOUT, policies, settles=_compiled(policies, numpy=numpy))
        for name, request in asked.items():
            if (text, name) != ("reject", "1 % outside"):
                found[f"{text}, {name}"] = _call(rules, request)
    return found


def _compiled(policies: Sequence[Policy], *, numpy: bool) -> SettlesIds | None:
    """Return what goes by them as servers do where a C compiler is, None for NumPy."""
    if numpy or policies[0].name == "reject":
        return None
    folder = Path(NativeDlrmOptions().cache_dir)
    return settled_ids(folder, policies, [TABLE_ROWS] * FEATURES)


def _call(rules: IdRules, request: InferRequest) -> Callable[[], object]:
    return lambda: rules.check(request)


def measure(arguments: argparse.Namespace) -> list[dict[str, float | str]]:
    """Return one line for each call: microseconds, and the ratio to the first."""
    measured = calls(arguments.rows, arguments.seed, numpy=arguments.numpy)
    times: dict[str, list[float]] = {name: [] for name in measured}
    for _ in range(arguments.rounds):
        for name, call in measured.items():
            begun_s = time.thread_time()
            for _ in range(arguments.calls):
                call()
            times[name].append((time.thread_time() - begun_s) / arguments.calls * 1e6)
    first = next(iter(times.values()))
    return [
        {
            "policy": name,
            "us": min(own),
            "ratio": statistics.median(us / base for us, base in zip(own, first, strict=True)),
        }
        for name, own in times.items()
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print a table, after one line of JSON that says on what."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--numpy", action="store_true", help="without the compiled library")
    arguments = parser.parse_args(argv)
    print(json.dumps(manifest(arguments)))
    print_table(measure(arguments))


if __name__ == "__main__":
    main()
