"""``python -m loadtest.gpu_check.wire ARTIFACT PLAN``: a whole server, asked through gRPC."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from loadtest import grpc_wire, workload
from loadtest.bars import narsil
from loadtest.lab.stats import percentile

_ROWS, _DISTINCT = 100, 500


def main(argv: Sequence[str]) -> int:
    """Print the median latency of one request at a time and the samples a second of sixteen."""
    artifact, plan = Path(argv[0]), argv[1]
    shape = workload.read_shape(artifact)
    bodies = workload.make_bodies(shape, _ROWS, _DISTINCT, 0, "protobuf")
    with narsil(artifact, ["--device=cuda:0", f"--plan={plan}"]) as port:
        one = grpc_wire.run("127.0.0.1", port, grpc_wire.Load(bodies, 1, 0.5, 2.0))
        many = grpc_wire.run("127.0.0.1", port, grpc_wire.Load(bodies, 16, 0.5, 2.0))
    if one.errors or many.errors:
        raise SystemExit(str(one.failures if one.errors else many.failures))
    figures = {
        f"p50_us_{_ROWS}": 1e6 * percentile(one.latencies_s, 0.5),
        f"samples_s_{_ROWS}": _ROWS * len(many.latencies_s) / many.elapsed_s,
    }
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
