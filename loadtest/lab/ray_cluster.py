"""A real Ray cluster on this machine: each node has an address of its own, like a machine."""

import contextlib
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

_STORE_BYTES = 100 * 2**20


class RayCluster:
    """A head, where the driver is and no actors are, and ``nodes`` with CPUs to give."""

    def __init__(self, health_check_ms: int) -> None:
        from ray.cluster_utils import Cluster  # noqa: PLC0415  # an extra

        self._numbers = iter(range(2, 250))
        self._cluster: Any = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "include_dashboard": False,
                "_system_config": {"health_check_period_ms": health_check_ms},
                **self._shared(),
            },
        )

    @property
    def address(self) -> str:
        """HOST:PORT of the head."""
        return str(self._cluster.address)

    @property
    def nodes(self) -> list[Any]:
        """All but the head."""
        return list(self._cluster.worker_nodes)

    def add_node(self, cpus: int = 1) -> Any:
        """Start one more node; return it."""
        return self._cluster.add_node(num_cpus=cpus, **self._shared())

    def kill_node(self, node: Any) -> None:
        """Kill every process of ``node``, as if its machine lost power."""
        self._cluster.remove_node(node, allow_graceful=False)

    def stop(self) -> None:
        """Disconnect this process and end every node."""
        import ray  # noqa: PLC0415

        ray.shutdown()
        self._cluster.shutdown()

    def _shared(self) -> dict[str, Any]:
        # Ray would put the host's own address in the place of 127.0.0.1.
        return {
            "node_ip_address": f"127.0.0.{next(self._numbers)}",
            "object_store_memory": _STORE_BYTES,
        }


@contextlib.contextmanager
def ray_cluster(nodes: int, health_check_ms: int = 3000) -> Iterator[RayCluster]:
    """Run a cluster with ``nodes`` nodes of one CPU, besides its head.

    A node that was missed five times, so often, is dead to Ray; 3000 is Ray's own default.
    """
    folder = tempfile.mkdtemp(prefix="ray-")  # short: its sockets' names are long
    ours = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": folder}
    environment = os.environ  # noqa: TID251  # Ray has no other way to be told
    before = {name: environment.get(name) for name in ours}
    environment.update(ours)
    logging.getLogger("ray").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own
        cluster = RayCluster(health_check_ms)
        try:
            for _ in range(nodes):
                cluster.add_node()
            yield cluster
        finally:
            cluster.stop()
            shutil.rmtree(folder, ignore_errors=True)
            for name, value in before.items():
                environment.pop(name) if value is None else environment.update({name: value})
