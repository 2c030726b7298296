"""What embedding updates cost under load, over replicas and in process."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.lab import closed_loop, setting
from loadtest.lab.stats import median
from loadtest.workload import read_shape
from scheduler.backend import TableRows
from scheduler.deltas import Delta
from scheduler.engine import Engine

_IN_FLIGHT = 32


async def updates(
    artifact: Path, rows: int, count: int, makes: Mapping[str, Callable[[], Any]]
) -> list[dict[str, float | str]]:
    """Return a line for each of ``makes``: deltas under load, and the load with and without."""
    requests = setting.make_requests(read_shape(artifact), 10, 200, seed=4)
    found: list[dict[str, float | str]] = []
    for name, make in makes.items():
        async with setting.serving(make()) as engine:
            ask, deltas = setting.asking(engine, requests), _deltas(engine, rows, count)
            await closed_loop.run(ask, _IN_FLIGHT, 1.0)
            alone = await closed_loop.run(ask, _IN_FLIGHT, 3.0)
            load = asyncio.create_task(closed_loop.run(ask, _IN_FLIGHT, 3.0))
            took_s = []
            for delta in deltas:
                took_s.append((await engine.updates("").apply(delta)).seconds)
                await asyncio.sleep(2.5 / count)
            beside = await load
        found.append(
            {
                "backend": name,
                "rows a delta": str(rows),
                "ms a delta": 1e3 * median(took_s),
                "slowest": 1e3 * max(took_s),
                "requests/s": alone.rate,
                "beside deltas": beside.rate,
            }
        )
    return found


def _deltas(engine: Engine, rows: int, count: int) -> list[Delta]:
    table, *_ = engine.updates("").tables()
    random = np.random.default_rng(5)
    return [
        Delta(
            str(number),
            (
                TableRows(
                    table.name,
                    random.choice(table.rows, rows, replace=False),
                    random.uniform(-0.1, 0.1, (rows, table.dim)).astype(np.float32),
                ),
            ),
        )
        for number in range(count)
    ]
