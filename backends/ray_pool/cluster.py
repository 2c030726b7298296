"""Join a Ray cluster, and put actors on it: what is asked of Ray, apart from calls."""

import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray._private.services import canonicalize_bootstrap_address  # no public name finds it
from ray.exceptions import RayError

from scheduler.errors import LoadError

_log = logging.getLogger(__name__)

_REACHABLE_S = 3.0
_START = "start one with: ray start --head --disable-usage-stats --include-dashboard=false"
_ANSWERED = (
    "something listens there: a cluster that asks for a token is joined with RAY_AUTH_MODE=token in"
    " the environment, and the token in ~/.ray/auth_token (docs/ray.md)"
)


@dataclass(frozen=True, slots=True)
class Room:
    """What one actor takes of its machine; ``threads`` is how many of its calls run at once."""

    cpus: float
    gpus: float
    threads: int


def join(address: str) -> None:
    """Make this process part of the cluster at ``address``, until it ends. Raises LoadError.

    One that is part of it already (for another model, or as an actor itself) stays so.
    """
    part_already = ray.is_initialized()
    if address != "auto" or not part_already:
        _check(address)
    if part_already:
        joined = ray.get_runtime_context().gcs_address
        if address not in {"auto", joined}:
            raise LoadError(f"--address {address}: this process is part of the cluster at {joined}")
        return
    # Its warnings are about this thread not being the main one; what matters raises.
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError, OSError, RayError) as error:
        # Ray says no more; it looks for a token by itself only where it finds the cluster itself.
        hint = _START if address == "auto" else _ANSWERED
        raise LoadError(f"no Ray cluster at --address {address}: {error}; {hint}") from error
    _log.info("joined the Ray cluster at %s", address)


def _check(address: str) -> None:
    """Refuse at once what Ray would take minutes to give up. Raises LoadError."""
    found = _found() if address == "auto" else address
    host, colon, port = found.rpartition(":")
    if not colon or not host or "/" in found or not port.isdigit():
        raise LoadError(f"--address must be auto or HOST:PORT of the cluster's head, got {found}")
    try:
        socket.create_connection((host, int(port)), _REACHABLE_S).close()
    except (OSError, OverflowError) as error:
        where = address if address == found else f"{address}, which is {found}"
        raise LoadError(f"no Ray cluster at --address {where}: {error}; {_START}") from error


def _found() -> str:
    """Return what "auto" is: RAY_ADDRESS, or the cluster that was started last on this machine.

    Ray remembers the latter when it is long gone. Raises LoadError.
    """
    try:
        return str(canonicalize_bootstrap_address("auto") or "local")
    except (ConnectionError, ValueError, OSError) as error:
        raise LoadError(f"no Ray cluster at --address auto: {error}; {_START}") from error


def placer(kind: type[Any], room: Room) -> Callable[..., Any]:
    """Return what puts a new actor of ``kind`` on some machine and returns its handle.

    Ray restarts it whenever it dies, there or elsewhere. It goes when this process does.
    """
    remote = ray.remote(kind).options(
        num_cpus=room.cpus,
        num_gpus=room.gpus,
        max_concurrency=room.threads,
        max_restarts=-1,
        max_task_retries=0,  # batches are retried elsewhere, at once
        scheduling_strategy="SPREAD",
    )
    place: Callable[..., Any] = remote.remote
    return place


def free() -> str:
    """Say what the cluster has left, for messages."""
    left = ray.available_resources()
    return f"{left.get('CPU', 0.0):g} CPUs and {left.get('GPU', 0.0):g} GPUs free"


def least_memory_bytes() -> int:
    """Return what the smallest machine that takes actors has for them."""
    found = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return int(min((each.get("memory", 0.0) for each in found if each.get("CPU")), default=0))


def node_of_worker() -> str:
    """Return the machine that this actor is on."""
    return str(ray.get_runtime_context().get_node_id())
