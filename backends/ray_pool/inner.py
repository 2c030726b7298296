"""The backend that runs on the cluster: looked up by name, its options made of texts."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from backends.ray_pool.options import RayPoolOptions
from scheduler.backend import Backend
from scheduler.errors import LoadError

_GROUP = "narsil.backends"
_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True, slots=True)
class Inner:
    """A backend as it travels to where it is made: its name, and options that are checked."""

    name: str
    options: Any

    def make(self) -> Backend:
        """Return the backend, not loaded. Raises LoadError."""
        made: Backend = _plugin(self.name)(self.options)
        return made


def make_inner(options: RayPoolOptions) -> Inner:
    """Return what ``options`` say of the backend. Raises LoadError naming the option."""
    plugin = _plugin(options.inner)
    kind: Any = getattr(plugin, "Options", None)
    if kind is None or "inner_options" in get_type_hints(kind):
        raise LoadError(f"inner: {options.inner!r} is no backend that a replica can be")
    known = get_type_hints(kind)
    values: dict[str, Any] = _defaults(options, set(known))
    for each in options.inner_options:
        key, _, text = each.partition("=")
        if key not in known:
            raise LoadError(
                f"inner_options: {options.inner} has no {key!r}; known: {', '.join(sorted(known))}"
            )
        values[key] = _parsed(known[key], key, text)
    try:
        return Inner(options.inner, kind(**values))
    except ValueError as error:
        raise LoadError(f"inner_options: {error}") from error


def _defaults(options: RayPoolOptions, known: set[str]) -> dict[str, Any]:
    """Return what the pool knows: where the model is, and as many lanes as a replica has CPUs."""
    # Ray starts workers in folders of its own.
    path = str(Path(options.path).expanduser().absolute()) if options.path else ""
    values: dict[str, Any] = {"path": path, "name": options.name, "version": options.version}
    values["lanes"] = max(1, int(options.cpus))
    return {key: value for key, value in values.items() if key in known and value != ""}


def _plugin(name: str) -> Callable[[Any], Backend]:
    known = entry_points(group=_GROUP)
    if name not in known.names:
        raise LoadError(f"inner: no backend {name!r}; installed: {', '.join(sorted(known.names))}")
    try:
        found: Callable[[Any], Backend] = known[name].load()
    except ImportError as error:
        raise LoadError(f"inner: {name!r} cannot be imported: {error}") from error
    return found


def _parsed(wanted: Any, key: str, text: str) -> Any:
    try:
        if get_origin(wanted) is tuple:
            return tuple(get_args(wanted)[0](item) for item in text.split(";") if item)
        return _BOOLEANS[text.lower()] if wanted is bool else wanted(text)
    except (ValueError, KeyError) as error:
        kind = getattr(wanted, "__name__", str(wanted))
        raise LoadError(f"inner_options: {key} must be {kind}, got {text!r}") from error
