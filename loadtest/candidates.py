"""What can be measured: every plan of every registered backend that reads artifacts."""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from backends.dlrm.ranges import MAKE_ONE
from scheduler.backend import Backend
from scheduler.errors import LoadError
from scheduler.types import Batch

BASE = "torch_dlrm:artifact"
# What a backend's option of this name can be set to, each a way to compute.
WAYS = {"plan": ("artifact", "lean", "fused"), "kernel": ("compiled", "numba")}


class Prepares(Protocol):
    """What can be timed: a backend, or a stand-in."""

    def prepare(self, batch: Batch) -> Callable[[], Any]:
        """Return what computes ``batch``."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A loaded model and the name of what computes it."""

    name: str
    backend: Prepares


class Hashing:
    """Computes nothing of a model, without Python's lock, for about as long as a forward takes."""

    def __init__(self) -> None:
        self._data = bytes(1 << 20)

    def prepare(self, batch: Batch) -> Callable[[], object]:
        """Return the work; ``batch`` is not looked at."""
        return lambda: hashlib.sha256(self._data).digest()


def load(
    artifact: Path, only: Sequence[str], skipped: Callable[[str, Exception], None]
) -> list[Candidate]:
    """Load every registered backend that reads artifacts, by every plan it has, BASE first.

    Two lanes of one thread each, where a backend lets that be chosen. What does not load here (its
    extra is not installed, it reads other files) is told to ``skipped``, unless ``only`` names it.
    Raises LoadError for that, for an artifact that is not there, and if nothing loads.
    """
    if not artifact.exists():
        raise LoadError(f"{artifact} does not exist; {MAKE_ONE.format(path=artifact)}")
    found = []
    for name in [BASE, *(name for name in only or names() if name != BASE)]:
        try:
            found.append(Candidate(name, load_one(artifact, name)))
        except (LoadError, ModuleNotFoundError) as error:
            if name in only:
                raise LoadError(f"{name}: {error}") from error
            skipped(name, error)
    if not found:
        raise LoadError(f"no backend loads {artifact}")
    return found


def names() -> list[str]:
    """Return ``backend`` or ``backend:plan`` for everything that computes in this process."""
    found = []
    for entry in entry_points(group="narsil.backends"):
        known = _fields(entry.load())
        if "path" in known and "inner" not in known:
            ways = [way for option in WAYS if option in known for way in WAYS[option]]
            found += [f"{entry.name}:{way}" for way in ways] or [entry.name]
    return found


def load_one(artifact: Path, name: str) -> Backend:
    """Load ``backend`` or ``backend:plan``: two lanes of one thread each. Raises LoadError."""
    backend, _, way = name.partition(":")
    registered = entry_points(group="narsil.backends")
    if backend not in registered.names:
        raise LoadError(f"no such backend; there are {', '.join(names())}")
    plugin = registered[backend].load()
    options = {
        "path": str(artifact), "lanes": 2, "intra_op_threads": 1, "threads": 1,
        **dict.fromkeys(WAYS, way),
    }  # fmt: skip
    known = _fields(plugin)
    chosen = {key: value for key, value in options.items() if key in known and value != ""}
    loaded: Backend = plugin(plugin.Options(**chosen))
    loaded.load()
    return loaded


def _fields(plugin: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(plugin.Options)}
