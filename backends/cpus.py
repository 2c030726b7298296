"""How many CPUs this process may use: its affinity, bounded by its cgroup's quota."""

import os
from collections.abc import Iterator
from pathlib import Path

_V2_QUOTA = "cpu.max"
_V1_QUOTA, _V1_PERIOD = "cpu.cfs_quota_us", "cpu.cfs_period_us"


def usable_cpus(root: Path = Path("/")) -> int:
    """Return how many threads of this process can run at once (at least 1)."""
    cpus = len(os.sched_getaffinity(0))
    quota = cgroup_cpus(root)
    return cpus if quota is None else max(1, min(cpus, int(quota)))


def cgroup_cpus(root: Path) -> float | None:
    """Return the CPUs that the cgroup quota grants, or None without one.

    Reads cgroup v2 (``cpu.max``) and v1 (``cpu.cfs_quota_us``) below ``root``. A group is bound by
    its parents too, and in a container the group's own path may not be mounted, so every folder
    from the group up to the mount is asked.
    """
    quotas = [quota for folder in _folders(root) if (quota := _quota(folder)) is not None]
    return min(quotas, default=None)


def _folders(root: Path) -> Iterator[Path]:
    mount = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, group = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = mount / "cpu" if controllers else mount
        inside = base / group.lstrip("/")
        yield from (folder for folder in (inside, *inside.parents) if folder.is_relative_to(base))


def _quota(folder: Path) -> float | None:
    fields = " ".join(_lines(folder / _V2_QUOTA)).split()
    if not fields:
        fields = _lines(folder / _V1_QUOTA) + _lines(folder / _V1_PERIOD)
    if len(fields) != 2 or fields[0] in {"max", "-1"}:
        return None
    return int(fields[0]) / int(fields[1])


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
