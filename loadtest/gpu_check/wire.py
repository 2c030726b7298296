"""``python -m loadtest.gpu_check.wire ARTIFACT PLAN``: a whole server, asked through gRPC."""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from loadtest import drive, workload
from loadtest.record import Outcome
from loadtest.rivals import narsil
from loadtest.wires.connect import connected
from loadtest.wires.kinds import KINDS, target

_ROWS, _DISTINCT = 100, 500


def main(argv: Sequence[str]) -> int:
    """Print the median latency of one request at a time and the samples a second of sixteen."""
    artifact, plan = Path(argv[0]), argv[1]
    shape = workload.read_shape(artifact)
    bodies = workload.make_bodies(shape, _ROWS, _DISTINCT, 0, "protobuf")
    with narsil(artifact, ["--device=cuda:0", f"--plan={plan}"], ("grpc",)) as urls:
        one, many = (_closed(urls["grpc"], bodies, in_flight) for in_flight in (1, 16))
    if one.errors or many.errors:
        raise SystemExit(str(one.failures if one.errors else many.failures))
    figures = {
        f"p50_us_{_ROWS}": 1e6 * one.service.percentile(50),
        f"samples_s_{_ROWS}": _ROWS * many.answered / many.elapsed_s,
    }
    print(json.dumps(figures))
    return 0


def _closed(url: str, bodies: Sequence[bytes], in_flight: int) -> Outcome:
    plan = drive.Plan(bodies, 0.5, 2.0, in_flight=in_flight)
    with connected("grpc", target(KINDS["grpc"], url, ""), 1) as wires:
        return drive.run(wires, plan, time.perf_counter())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
