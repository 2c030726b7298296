"""Reload a model in its own place under requests; tell what is held after each time.

    python -m tests.numerics.reloads torch_dlrm:lean FOLDER [--retain]

Resident memory does not tell a leak from malloc's arenas. What is told instead does: how many
models are alive (weak references), bytes that malloc has given out and not got back, in every arena
and by mmap, and bytes of the model's files that are mapped. ``--retain`` keeps every model: a leak.
"""

import asyncio
import ctypes
import gc
import json
import re
import sys
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from scheduler.backend import Backend
from scheduler.engine import Engine
from scheduler.observer import Observer
from scheduler.options import SchedulerOptions
from tests.fixtures.requests import random_request

RELOADS = 8


@dataclass(frozen=True, slots=True)
class Held:
    """What the process holds after a reload."""

    models: int
    malloc_bytes: int
    mapped_bytes: int


def malloc_bytes() -> int:
    """Return the bytes that malloc has given out, by its own account (malloc_info)."""
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    with tempfile.NamedTemporaryFile() as file:
        stream = ctypes.c_void_p(libc.fopen(file.name.encode(), b"w"))
        libc.malloc_info(0, stream)
        libc.fclose(stream)
        tree = ElementTree.parse(file.name).getroot()

    def size(kind: str, name: str) -> int:
        # The direct children are the sums over all heaps.
        return sum(int(one.attrib["size"]) for one in tree.findall(f"{kind}[@type='{name}']"))

    free = size("total", "fast") + size("total", "rest")
    return size("system", "current") - free + size("total", "mmap")


def mapped_bytes(folder: Path) -> int:
    """Return how many bytes of files in ``folder`` are mapped, each mapping by itself."""
    total = 0
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        if line.endswith(tuple(str(path) for path in folder.iterdir())):
            found = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
            assert found is not None
            total += int(found[2], 16) - int(found[1], 16)
    return total


def new_backend(name: str, folder: Path) -> Backend:
    """Return a backend of ``folder``, not loaded; ``name`` may say a plan: backend:plan."""
    backend, _, plan = name.partition(":")
    options: dict[str, Any] = {"path": str(folder), "lanes": 1} | ({"plan": plan} if plan else {})
    plugin: Any = entry_points(group="narsil.backends")[backend].load()
    made: Backend = plugin(plugin.Options(**options))
    return made


async def reload(name: str, folder: Path, *, retain: bool) -> list[Held]:
    """Return what is held after each reload."""
    engine = Engine(SchedulerOptions(), Observer())
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    kept: list[Any] = []
    held: list[Held] = []
    for number in range(RELOADS):
        backend: Any = new_backend(name, folder)
        await (engine.swap(backend) if number else engine.load(backend))
        model = backend._model.runtime
        alive.add(model)
        kept += [model] if retain else []
        engine.open()
        for seed in range(8):
            await engine.infer(random_request(backend.spec, 1 + seed, seed=seed))
        del backend, model
        gc.collect()
        held.append(Held(len(alive), malloc_bytes(), mapped_bytes(folder)))
    await engine.close(1.0)
    return held


def main(argv: Sequence[str]) -> None:
    """Print a line of JSON for each reload."""
    name, folder = argv[0], Path(argv[1]).resolve()
    for held in asyncio.run(reload(name, folder, retain="--retain" in argv)):
        print(json.dumps(asdict(held)))


if __name__ == "__main__":
    main(sys.argv[1:])
