"""The simulation with the machine as it was in each measured run.

On a machine that others share the same run takes twice as long a minute later, so that no
calibration foretells it. What a run tells of its service times is taken from it: what each batch
took of the processor, with its neighbours' part; what the loop did, and the client; how late the
client was. Who waits for whom, and so every latency and the throughput, is simulated.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from loadtest.fleet.box import Box, Service
from loadtest.fleet.calibration import Calibration, Shared
from loadtest.fleet.closed import simulate_closed
from loadtest.fleet.fleet import simulate
from loadtest.fleet.measured import Run
from loadtest.fleet.notes import loop_spent_s
from loadtest.fleet.pace import Pace, followed
from loadtest.fleet.plan import Plan, Result
from loadtest.schedule import Arrivals

_WINDOW_S = 0.02
_TRIES = 3
POISSON = Arrivals("poisson")


def told(run: Run, service: Service) -> dict[str, Any]:
    """Return what ``run`` tells of its service times, as it is written to the file."""
    batches = run.batches
    pace = followed(
        [batch.ended_s for batch in batches],
        [batch.spent_s for batch in batches],
        [service.of(batch.rows) for batch in batches],
        _WINDOW_S,
    )
    return {
        "pace": list(pace.lane),
        "loop_s": loop_spent_s(run),
        "client_s": run.outcome.cpu_s / run.requests,
        "lag_s": run.outcome.lag.percentile(50) if run.outcome.lag.total else 0.0,
    }


def simulated(
    calibration: Calibration, shared: Shared, point: Mapping[str, Any], run: Mapping[str, Any]
) -> Result:
    """Simulate one measured run of ``point``; its loop is made to work as long as the real one."""
    box = replace(
        calibration.box(),
        pace=Pace(_WINDOW_S, tuple(run["pace"])),
        wire_s=shared.wire_s * run["client_s"] / shared.client_s,
        # The client is late because its processor idled: so is whoever wakes the server's.
        idle_s=run["lag_s"],
    )
    for _ in range(_TRIES):
        result = _once(box, calibration.rows, point, run)
        longer = run["loop_s"] * result.answered / result.loop_s
        box = replace(box, pace=replace(box.pace, loop=box.pace.loop * longer))
    result.latencies_s = (np.asarray(result.latencies_s) + run["lag_s"]).tolist()
    return result


def _once(box: Box, rows: int, point: Mapping[str, Any], run: Mapping[str, Any]) -> Result:
    if not point["rate"]:
        return simulate_closed(box, point["in_flight"], rows, point["seconds"], seed=1)
    due_s = POISSON.times(run["rate"], point["warmup_s"] + point["seconds"], run["seed"])
    return simulate(Plan(box), due_s.tolist(), [rows], run["seed"])
