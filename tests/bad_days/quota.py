"""Half a processor for a process: by its control group, or by stopping it every other moment."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

PERIOD_S = 0.1
_V1, _V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


@contextmanager
def born_on_half_a_core() -> Iterator[bool]:
    """Let what is started within the block have half a core; yield whether that is so.

    Not where control groups belong to somebody else.
    """
    version, mount = (1, _V1) if (_V1 / "cgroup.procs").exists() else (2, _V2)
    home, group = mount / _own_group(version), mount / f"narsil-half-a-core-{os.getpid()}"
    try:
        group.mkdir()
        if version == 1:
            (group / "cpu.cfs_period_us").write_text(f"{PERIOD_S * 1e6:.0f}")
            (group / "cpu.cfs_quota_us").write_text(f"{PERIOD_S * 5e5:.0f}")
        else:
            (group / "cpu.max").write_text(f"{PERIOD_S * 5e5:.0f} {PERIOD_S * 1e6:.0f}")
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        with contextlib.suppress(OSError):
            group.rmdir()
        yield False
        return
    try:
        yield True
    finally:
        (home / "cgroup.procs").write_text(str(os.getpid()))


def forget_groups() -> None:
    """Remove the group once nobody is in it."""
    for mount in (_V1, _V2):
        with contextlib.suppress(OSError):
            (mount / f"narsil-half-a-core-{os.getpid()}").rmdir()


@asynccontextmanager
async def stopped_half_the_time(pid: int) -> AsyncIterator[None]:
    """Do to one process what a quota does: nothing of it runs for half of each period."""
    os.sched_setaffinity(pid, {min(os.sched_getaffinity(pid))})

    async def take_turns() -> None:
        with contextlib.suppress(ProcessLookupError):
            while True:
                for number in (signal.SIGSTOP, signal.SIGCONT):
                    os.kill(pid, number)
                    await asyncio.sleep(PERIOD_S / 2)

    turns = asyncio.create_task(take_turns())
    try:
        yield
    finally:
        turns.cancel()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _own_group(version: int) -> str:
    """Return the path of this process' group below the mount."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        if ("cpu" in controllers.split(",")) if version == 1 else not controllers:
            return group.lstrip("/")
    return ""
