"""Make options dataclasses of raw settings, each value with its origin. Reads nothing itself.

A section is a frozen options dataclass; unknown keys are errors, so that a typing mistake cannot
pass unnoticed.
"""

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, get_args, get_origin, get_type_hints

# How alike, 0 to 1: two letters changed round in a word of four are a slip, two others are not.
_CLOSE = 0.75
# Where a value comes from that nobody has given.
DEFAULT = "default"


class ConfigError(Exception):
    """Say which setting is wrong, where it came from and what would be right."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One raw value and where it came from."""

    raw: Any
    origin: str


# By key.
Settings: TypeAlias = Mapping[str, Setting]


@dataclass(frozen=True, slots=True)
class Section:
    """The options of one section, and where the value of each key came from."""

    name: str
    options: Any
    origins: Mapping[str, str]

    def lines(self) -> list[str]:
        """Return one line a value: ``section.key = value  # origin``."""
        return [
            f"{self.name}.{key} = {getattr(self.options, key)!r}  # {origin}"
            for key, origin in self.origins.items()
        ]


def make_section(
    name: str, options: type[Any], given: Settings, also: Sequence[str] = ()
) -> Section:
    """Return section ``name``: ``options`` as ``given``, else by default.

    ``also`` are keys that the section may have elsewhere, for the hint. Raises ConfigError.
    """
    known = keys(options)
    hints = get_type_hints(options)
    for key, setting in given.items():
        if key not in known:
            raise ConfigError(
                f"{setting.origin}: section {name!r} has no key {key!r}{hint(key, [*known, *also])}"
            )
    values = {key: _convert(hints[key], given[key], f"{name}.{key}") for key in given}
    origins = {key: given[key].origin if key in given else DEFAULT for key in known}
    try:
        return Section(name, options(**values), origins)
    except ValueError as error:
        raise ConfigError(f"section {name!r}: {error}") from error


def keys(options: type[Any]) -> list[str]:
    """Return the keys of a section."""
    return [option.name for option in dataclasses.fields(options)]


def hint(name: str, known: list[str]) -> str:
    """Return how to go on after an unknown ``name``: the known one it resembles, or all."""
    close = closest(name, known)
    return f"; did you mean {close!r}?" if close else f"; known: {', '.join(known)}"


def closest(name: str, known: Sequence[str]) -> str:
    """Return the one of ``known`` that ``name`` must be a slip of; empty if none is so close."""
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=_CLOSE)), "")


def _convert(wanted: Any, setting: Setting, name: str) -> Any:
    try:
        return _parse(wanted, setting.raw)
    except (ValueError, TypeError) as error:
        kind = wanted.__name__ if isinstance(wanted, type) else str(wanted)
        raise ConfigError(
            f"{setting.origin}: {name} must be {kind}, got {setting.raw!r}"
        ) from error


def _parse(wanted: Any, raw: Any) -> Any:
    if get_origin(wanted) is tuple:
        items = [item for item in raw.split(",") if item] if isinstance(raw, str) else raw
        return tuple(_parse(get_args(wanted)[0], item) for item in items)
    if isinstance(raw, str):
        return _parse_text(wanted, raw)
    if wanted is float and type(raw) is int:
        return float(raw)
    if type(raw) is not wanted:
        raise TypeError
    return raw


def _parse_text(wanted: Any, text: str) -> Any:
    if wanted is bool:
        values = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
        if text.lower() not in values:
            raise ValueError(text)
        return values[text.lower()]
    return wanted(text)
