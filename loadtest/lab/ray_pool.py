"""What a Ray cluster costs a batch, and what a death costs: in process, replicated and sharded.

``python -m loadtest.lab.ray_pool ARTIFACT`` starts a cluster of its own on this machine.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from loadtest.lab import closed_loop, setting
from loadtest.lab.manifest import manifest
from loadtest.lab.ray_cluster import RayCluster, ray_cluster
from loadtest.lab.ray_updates import updates
from loadtest.lab.stats import median, median_ratio
from loadtest.lab.tables import print_table
from loadtest.workload import read_shape
from scheduler.types import Batch

_NATIVE = ("lanes=1",)
_IN_FLIGHT = 32
_PARTS = ("batches", "goodput", "deaths", "updates")


def _load(name: str, **options: object) -> Any:
    plugin = entry_points(group="narsil.backends")[name].load()
    backend = plugin(plugin.Options(**options))
    backend.load()
    return backend


def _backends(artifact: Path, address: str) -> dict[str, Any]:
    path = str(artifact.absolute())
    shared = {"path": path, "address": address, "inner_options": _NATIVE}
    return {
        "in process": _load("native_dlrm", path=path, lanes=1),
        "1 replica": _load("ray", **shared),
        "2 shards": _load("ray", shard="tables", cpus=0.5, **shared),
        "2 shards by rows": _load("ray", shard="tables", plan="row_wise", cpus=0.5, **shared),
        "2 shards, dense actor": _load("ray", shard="tables", dense="actor", cpus=0.5, **shared),
    }


def batches(
    backends: Mapping[str, Any], artifact: Path, rows: int, rounds: int
) -> list[dict[str, float | str]]:
    """Return a line for each backend: one batch of one request after the other, interleaved."""
    requests = setting.make_requests(read_shape(artifact), rows, 50, seed=1)
    walls: dict[str, list[float]] = {name: [] for name in backends}
    cpus: dict[str, list[float]] = {name: [] for name in backends}
    for number in range(rounds * len(backends)):
        name = [*backends][number % len(backends)]
        began_s, used_s = time.perf_counter(), time.process_time()
        for request in requests:
            backends[name].prepare(Batch((request,)))()
        walls[name].append((time.perf_counter() - began_s) / len(requests))
        cpus[name].append((time.process_time() - used_s) / len(requests))
    base = walls["in process"]
    return [
        {
            "rows": str(rows),
            "backend": name,
            "us a batch": 1e6 * median(walls[name]),
            "ratio": median_ratio(walls[name], base),
            "us more": 1e6 * (median(walls[name]) - median(base)),
            "gateway's CPU us": 1e6 * median(cpus[name]),
        }
        for name in backends
    ]


async def goodput(
    artifact: Path, rows: int, rounds: int, makes: Mapping[str, Callable[[], Any]]
) -> list[dict[str, float | str]]:
    """Return a line for each of ``makes``: closed loop through the scheduler, interleaved."""
    requests = setting.make_requests(read_shape(artifact), rows, 200, seed=2)
    rates: dict[str, list[float]] = {name: [] for name in makes}
    async with contextlib.AsyncExitStack() as stack:
        engines = {
            name: await stack.enter_async_context(setting.serving(make()))
            for name, make in makes.items()
        }
        for number in range((rounds + 1) * len(makes)):  # the first warms up
            name = [*makes][number % len(makes)]
            ask = setting.asking(engines[name], requests)
            rates[name].append((await closed_loop.run(ask, _IN_FLIGHT, 1.5)).rate)
    return [
        {"rows": str(rows), "backend": name, "requests/s": median(found[1:])}
        for name, found in rates.items()
    ]


async def death(
    artifact: Path, cluster: RayCluster, kill: str, backend: Any
) -> dict[str, float | str]:
    """Kill a replica or a node under load; return how long answers and capacity stayed away."""
    requests = setting.make_requests(read_shape(artifact), 10, 200, seed=3)
    async with setting.serving(backend) as engine:
        ask, answered_s = setting.asking(engine, requests), [time.perf_counter()]
        slowest_s = 0.0

        async def asked() -> None:
            nonlocal slowest_s
            began_s = time.perf_counter()
            await ask()
            answered_s.append(time.perf_counter())
            slowest_s = max(slowest_s, answered_s[-1] - began_s)

        load = asyncio.create_task(closed_loop.run(asked, _IN_FLIGHT, 120.0))
        await asyncio.sleep(5.0)
        full, loop = backend.lanes_for(0), asyncio.get_running_loop()
        victims, killed_s = backend.processes(), time.perf_counter()
        if kill == "a replica":
            os.kill(min(victims), signal.SIGKILL)
        else:
            node = next(each for each in cluster.nodes if each.node_id in victims.values())
            dead = loop.run_in_executor(None, cluster.kill_node, node)
        noticed_s = await _when(lambda: backend.lanes_for(0) < full)
        whole_s = await _when(lambda: backend.lanes_for(0) == full)
        if kill != "a replica":
            await dead
        before = len([at for at in answered_s if killed_s - 2 <= at < killed_s]) / 2
        load.cancel()  # raises what a request has
        with contextlib.suppress(asyncio.CancelledError):
            await load
    after = [at for at in answered_s if at >= killed_s]
    gaps = [later - earlier for earlier, later in zip([killed_s, *after], after, strict=False)]
    return {
        "killed": kill,
        "answers": float(len(answered_s)),
        "answers/s before": before,
        "meanwhile": len([at for at in after if at < whole_s]) / (whole_s - killed_s),
        "longest s without an answer": max(gaps),
        "slowest answer s": slowest_s,
        "noticed after s": noticed_s - killed_s,
        "whole after s": whole_s - killed_s,
    }


async def _when(holds: Callable[[], bool]) -> float:
    """Wait until ``holds()``; return the time. A pool has no event to wait for."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    return time.perf_counter()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 10, 100, 400])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--health-check-ms",
        type=int,
        default=3000,
        help="how often Ray asks a node; its default",
    )
    parser.add_argument("--parts", nargs="*", default=[*_PARTS])
    arguments = parser.parse_args(argv)
    print(json.dumps(manifest(arguments)))
    with ray_cluster(6, arguments.health_check_ms) as cluster:
        _measure(cluster, arguments)
        print(f"load average {os.getloadavg()[0]:.2f}")
    return 0


def _measure(cluster: RayCluster, arguments: argparse.Namespace) -> None:
    artifact, rounds = arguments.artifact, arguments.rounds
    path = str(artifact.absolute())
    plugins = entry_points(group="narsil.backends")
    native, ray = plugins["native_dlrm"].load(), plugins["ray"].load()
    shared = {"path": path, "address": cluster.address, "inner_options": _NATIVE}
    makes = {
        "in process, 1 lane": lambda: native(native.Options(path=path, lanes=1)),
        "1 replica": lambda: ray(ray.Options(**shared)),
        "2 replicas": lambda: ray(ray.Options(min_replicas=2, **shared)),
    }
    if "batches" in arguments.parts:
        found = _backends(artifact, cluster.address)
        for rows in arguments.rows:
            print_table(batches(found, artifact, rows, rounds))
        for backend in found.values():
            backend.close()
    if "goodput" in arguments.parts:
        parts = {**shared, "shard": "tables", "cpus": 0.5}
        sharded = {
            "2 shards": lambda: ray(ray.Options(**parts)),
            "2 shards, dense actor": lambda: ray(ray.Options(dense="actor", **parts)),
        }
        print_table(setting.run(goodput(artifact, 10, rounds, {**makes, **sharded})))
    if "updates" in arguments.parts:
        print_table(setting.run(updates(artifact, 1000, 10, makes)))
    if "deaths" in arguments.parts:
        for kill in ("a replica", "a node"):
            print_table([setting.run(death(artifact, cluster, kill, makes["2 replicas"]()))])


if __name__ == "__main__":
    sys.exit(main())
