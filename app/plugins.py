"""Look plug-ins up by name among the installed entry points; ours use the same door as yours."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar, cast

from scheduler.backend import Backend
from transports.base import Transport

T = TypeVar("T")
Command = Callable[[Sequence[str]], int]


class PluginError(Exception):
    """Say which plug-in is missing or broken."""


@dataclass(frozen=True)
class Plugin(Generic[T]):
    """A plug-in's options dataclass and how to make it from them."""

    options: type[Any]
    build: Callable[[Any], T]


def backend(name: str) -> Plugin[Backend]:
    """Return the backend plug-in called ``name``. Raises PluginError."""
    return _plugin("narsil.backends", name)


def transport(name: str) -> Plugin[Transport]:
    """Return the transport plug-in called ``name``. Raises PluginError."""
    return _plugin("narsil.transports", name)


def names(group: str) -> tuple[str, ...]:
    """Return the names of everything installed under ``group``."""
    return tuple(sorted(entry_points(group=group).names))


def command(name: str) -> Command:
    """Return the command called ``name``: argv in, exit code out. Raises PluginError."""
    return cast("Command", _load("narsil.commands", name))


def origin(name: str) -> str:
    """Return where the command called ``name`` comes from, without importing it."""
    package = entry_points(group="narsil.commands")[name].dist
    return f"from the package {package.name}" if package else "from a plug-in"


def _plugin(group: str, name: str) -> Plugin[Any]:
    found = _load(group, name)
    options = getattr(found, "Options", None)
    if not isinstance(options, type):
        raise PluginError(f"{group}: {name!r} has no Options dataclass")
    return Plugin(options, found)


def _load(group: str, name: str) -> Any:
    known = entry_points(group=group)
    if name not in known.names:
        raise PluginError(f"{group}: no {name!r}; installed: {', '.join(sorted(known.names))}")
    try:
        return known[name].load()
    except ImportError as error:
        raise PluginError(f"{group}: {name!r} cannot be imported: {error}") from error
