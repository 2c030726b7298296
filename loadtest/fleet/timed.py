"""What each batch costs a real server in processor time, one by one, in a file."""

import os
import struct
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from loadtest.lab.backends import Lent
from scheduler.backend import Backend, Compute
from scheduler.types import Array, Batch

_RECORD = struct.Struct("=dddd")


@dataclass(frozen=True, slots=True)
class Ended:
    """One batch: when it ended (perf_counter's seconds), its rows, and what it took.

    ``cpu_s`` are its threads' processor seconds from the end of the lane's batch before to its own:
    what the lane does around it is in it. ``spent_s`` is that and what neighbours on the processor
    took meanwhile, though not the event loop; one gathered ahead leaves that to the one before.
    """

    ended_s: float
    rows: int
    cpu_s: float
    spent_s: float


class Log:
    """The file: a server appends to it, whoever measures reads what is new."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = 0

    def new(self) -> list[Ended]:
        """Return what has been added since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            added = file.read()
        self._read_bytes += len(added)
        return [
            Ended(ended_s, int(rows), cpu_s, spent_s)
            for ended_s, rows, cpu_s, spent_s in _RECORD.iter_unpack(added)
        ]


@dataclass(frozen=True, slots=True)
class _Clocks:
    """Seconds of the wall, of the calling thread and of the event loop's, which is the main one."""

    wall_s: float
    own_s: float
    loop_s: float

    @classmethod
    def now(cls) -> "_Clocks":
        main = time.pthread_getcpuclockid(threading.main_thread().ident or 0)
        return cls(time.perf_counter(), time.thread_time(), time.clock_gettime(main))


class TimedBackend(Lent):
    """Run ``backend`` and note every batch in ``path``."""

    def __init__(self, backend: Backend, path: Path) -> None:
        super().__init__(backend)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._lane = threading.local()

    def load(self) -> None:
        """Load the backend."""
        self._backend.load()

    def prepare(self, batch: Batch) -> Compute:
        """Let the backend gather."""
        began, thread = _Clocks.now(), threading.get_ident()
        compute = super().prepare(batch)
        gather_s = time.thread_time() - began.own_s
        return partial(self._run, compute, batch.rows, thread, gather_s, began)

    def _run(
        self, compute: Compute, rows: int, gathered_by: int, gather_s: float, began: _Clocks
    ) -> Mapping[str, Array]:
        ahead = gathered_by != threading.get_ident()
        began = _Clocks.now() if ahead else began
        outputs = compute()
        now = _Clocks.now()
        cpu_s = now.own_s - getattr(self._lane, "ended_s", began.own_s)
        self._lane.ended_s = now.own_s
        others_s = (now.wall_s - began.wall_s) - (now.own_s - began.own_s)
        others_s -= now.loop_s - began.loop_s
        # Gathering ahead is among what others took of the batch that was computed meanwhile.
        spent_s = cpu_s + max(0.0, others_s)
        cpu_s += gather_s if ahead else 0.0
        os.write(self._file, _RECORD.pack(now.wall_s, rows, cpu_s, spent_s))
        return outputs

    def close(self) -> None:
        """Close the backend."""
        self._backend.close()
        os.close(self._file)
