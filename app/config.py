"""Resolve the configuration: flag > environment > TOML file > default, each value with its origin.

The only module that reads files or the environment for settings. A section is a frozen options
dataclass; unknown sections and keys are errors, so a typing mistake cannot pass unnoticed.
"""

import dataclasses
import difflib
import math
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

PREFIX = "NARSIL_"


class ConfigError(Exception):
    """Say which setting is wrong, where it came from and what would be right."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Choose what runs, and how it stops."""

    backend: str = field(default="torch_dlrm", metadata={"help": "backend plug-in"})
    transports: tuple[str, ...] = field(
        default=("http", "grpc", "http3", "admin"), metadata={"help": "transport plug-ins to start"}
    )
    drain_delay_s: float = field(
        default=5.0,
        metadata={"help": "after SIGTERM: seconds not ready but still serving (Ctrl-C skips it)"},
    )
    grace_s: float = field(
        default=20.0, metadata={"help": "seconds that requests under way may take to finish"}
    )
    log_level: str = field(default="info", metadata={"help": "debug, info, warning or error"})

    def __post_init__(self) -> None:
        """Refuse what could not work. Raises ValueError."""
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise ValueError(
                f"log_level must be debug, info, warning or error, got {self.log_level!r}"
            )
        for name in ("drain_delay_s", "grace_s"):
            seconds = getattr(self, name)
            if not 0 <= seconds < math.inf:
                raise ValueError(f"{name} must be a number of seconds, 0 or more, got {seconds:g}")


@dataclass(frozen=True, slots=True)
class Setting:
    """One raw value and where it came from."""

    raw: Any
    origin: str


@dataclass(frozen=True, slots=True)
class Sources:
    """All raw settings by ``section`` and ``key``, the strongest source having won."""

    settings: Mapping[str, Mapping[str, Setting]]

    def check_sections(self, known: Iterable[str]) -> None:
        """Refuse settings for sections that do not exist. Raises ConfigError."""
        names = sorted(known)
        for section, settings in self.settings.items():
            if section not in names:
                origin = next(iter(settings.values())).origin if settings else "file"
                raise ConfigError(f"{origin}: no section {section!r}{_hint(section, names)}")

    def section(self, name: str, options: type[Any]) -> tuple[Any, dict[str, str]]:
        """Return section ``name`` as ``options`` and the origin of each key. Raises ConfigError."""
        given = self.settings.get(name, {})
        hints = get_type_hints(options)
        known = [option.name for option in dataclasses.fields(options)]
        for key, setting in given.items():
            if key not in known:
                raise ConfigError(
                    f"{setting.origin}: section {name!r} has no key {key!r}{_hint(key, known)}"
                )
        values = {key: _convert(hints[key], given[key], f"{name}.{key}") for key in given}
        origins = {key: given[key].origin if key in given else "default" for key in known}
        try:
            return options(**values), origins
        except ValueError as error:
            raise ConfigError(f"section {name!r}: {error}") from error


def gather(file: Path | None, flags: Mapping[str, Any]) -> Sources:
    """Merge the TOML ``file``, the environment and ``flags`` ("section.key" -> raw value).

    Raises ConfigError.
    """
    merged: dict[str, dict[str, Setting]] = {}
    for layer in (_from_file(file), _from_environment(os.environ), _from_flags(flags)):
        for section, settings in layer.items():
            merged.setdefault(section, {}).update(settings)
    return Sources(merged)


def _from_file(file: Path | None) -> dict[str, dict[str, Setting]]:
    if file is None:
        return {}
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from error
    for section, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{file}: {section!r} stands outside a [section]")
    return {
        section: {key: Setting(raw, f"file {file}") for key, raw in table.items()}
        for section, table in tables.items()
    }


def _from_environment(environment: Mapping[str, str]) -> dict[str, dict[str, Setting]]:
    layer: dict[str, dict[str, Setting]] = {}
    for name, raw in environment.items():
        if name.startswith(PREFIX) and "__" in name:
            section, key = name.removeprefix(PREFIX).lower().split("__", 1)
            layer.setdefault(section, {})[key] = Setting(raw, f"environment {name}")
    return layer


def _from_flags(flags: Mapping[str, Any]) -> dict[str, dict[str, Setting]]:
    layer: dict[str, dict[str, Setting]] = {}
    for name, raw in flags.items():
        section, key = name.split(".", 1)
        flag = f"flag --{section}-{key}".replace("_", "-")
        layer.setdefault(section, {})[key] = Setting(raw, flag)
    return layer


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


def _hint(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"
