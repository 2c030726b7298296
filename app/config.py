"""Gather the raw settings: flag > environment > TOML file > default.

The only module that reads files or the environment for settings.
"""

import math
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.settings import ConfigError, Setting, Settings, hint

PREFIX = "NARSIL_"
MODELS = "models"
MAX_FRONTENDS = 64
LEAST_SLOT_BYTES, MOST_SLOT_BYTES = 1 << 20, 1 << 40


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable that is no setting: it is looked at before there are any."""

    name: str
    default: bool
    about: str


COMPILED = Variable(
    "NARSIL_COMPILED",
    default=True,
    about="every command: use the compiled path of a request where there is one"
    " ([compiled.md](compiled.md))",
)
# All that is read beside the settings.
VARIABLES = (COMPILED,)


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
    frontends: int = field(
        default=0,
        metadata={"help": "processes that the transports run in, beside the models'; 0: in it"},
    )
    frontend_slot_bytes: int = field(
        default=268_435_456,
        metadata={"help": "bytes of requests that one front end may hold, a power of two"},
    )
    frontend_hung_s: float = field(
        default=10.0,
        metadata={"help": "seconds a front end, or its engine, may say nothing; 0: for ever"},
    )
    model_control: bool = field(
        default=False,
        metadata={"help": "let any client load and unload models (Open Inference Protocol)"},
    )
    api_keys: str = field(
        default="", metadata={"help": "TOML file of API keys; empty: clients need none"}
    )
    artifact_keys: str = field(
        default="",
        metadata={"help": "PEM file of Ed25519 keys, one of which must have signed every artifact"},
    )
    deltas: str = field(
        default="", metadata={"help": "folder to watch for deltas of embedding rows"}
    )
    shared_memory: str = field(
        default="",
        metadata={
            "help": "how the names of shared memory objects begin that clients may register: "
            "/NAME, or / for any; empty: none"
        },
    )
    log_level: str = field(default="info", metadata={"help": "debug, info, warning or error"})

    def __post_init__(self) -> None:
        """Refuse what could not work. Raises ValueError."""
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise ValueError(
                f"log_level must be debug, info, warning or error, got {self.log_level!r}"
            )
        if not 0 <= self.frontends <= MAX_FRONTENDS:
            raise ValueError(f"frontends must be 0 to {MAX_FRONTENDS}, got {self.frontends}")
        slots = self.frontend_slot_bytes
        if not LEAST_SLOT_BYTES <= slots <= MOST_SLOT_BYTES or slots & (slots - 1):
            raise ValueError(
                f"frontend_slot_bytes must be a power of two from {LEAST_SLOT_BYTES} to"
                f" {MOST_SLOT_BYTES}, got {slots}"
            )
        if "/" in self.shared_memory.lstrip("/"):
            raise ValueError(
                "shared_memory must be / or the beginning of a POSIX name such as /narsil,"
                f" got {self.shared_memory!r}"
            )
        if self.shared_memory and self.frontends:
            raise ValueError(
                "shared_memory is one process's own, and a client's next connection may come to"
                f" another: frontends must be 0 with it, got {self.frontends}; with front ends"
                " clients send tensors in the body"
            )
        for name in ("drain_delay_s", "grace_s", "frontend_hung_s"):
            seconds = getattr(self, name)
            if not 0 <= seconds < math.inf:
                raise ValueError(f"{name} must be a number of seconds, 0 or more, got {seconds:g}")


@dataclass(frozen=True, slots=True)
class ModelTable:
    """What ``[models.NAME]`` says, and apart from it its ``scheduler`` table."""

    origin: str
    settings: Settings
    scheduler: Settings


@dataclass(frozen=True, slots=True)
class Sources:
    """The raw settings of each section, the strongest source having won, and each model's own."""

    sections: Mapping[str, Settings]
    models: Mapping[str, ModelTable]

    def check_sections(self, known: Iterable[str]) -> None:
        """Refuse settings for sections that do not exist. Raises ConfigError."""
        names = sorted({*known, MODELS})
        for section, settings in self.sections.items():
            if section not in names:
                origin = next(iter(settings.values())).origin if settings else "file"
                raise ConfigError(f"{origin}: no section {section!r}{hint(section, names)}")


def compiled_wanted() -> bool:
    """Return whether compiled modules are to be used where there are any. Raises ConfigError."""
    raw = os.environ.get(COMPILED.name, str(COMPILED.default).lower())
    if raw not in ("true", "false"):
        raise ConfigError(f"environment {COMPILED.name}: expected true or false, got {raw!r}")
    return raw == "true"


def gather(file: Path | None, flags: Mapping[str, Any]) -> Sources:
    """Merge the TOML ``file``, the environment and ``flags`` ("section.key" -> raw value).

    Raises ConfigError.
    """
    tables = _read(file) if file else {}
    origin = f"file {file}"
    models = _models(tables.pop(MODELS, {}), origin)
    merged: dict[str, dict[str, Setting]] = {}
    for layer in (_from_file(tables, origin), _from_environment(os.environ), _from_flags(flags)):
        for section, settings in layer.items():
            merged.setdefault(section, {}).update(settings)
    return Sources(merged, models)


def parse_tables(text: str, origin: str) -> dict[str, Any]:
    """Return the tables and values of a TOML ``text``. Raises ConfigError."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of 4,301 digits, and [[[[...
        raise ConfigError(f"{origin}: {error}") from error


def make_table(table: dict[str, Any], name: str, origin: str) -> ModelTable:
    """Return what ``table`` says of the model ``name``. Raises ConfigError."""
    scheduler = table.pop("scheduler", {})
    if not isinstance(scheduler, dict):
        raise ConfigError(f"{origin}: {MODELS}.{name}.scheduler must be a table")
    return ModelTable(origin, _settings(table, origin), _settings(scheduler, origin))


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"{file}: {why}") from error


def _from_file(tables: Mapping[str, Any], origin: str) -> dict[str, dict[str, Setting]]:
    for section, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{origin}: {section!r} stands outside a [section]")
    return {section: _settings(table, origin) for section, table in tables.items()}


def _models(tables: Any, origin: str) -> dict[str, ModelTable]:
    if not isinstance(tables, dict):
        raise ConfigError(f"{origin}: {MODELS!r} stands outside a [section]")
    models = {}
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{origin}: {MODELS}.{name} stands outside a [{MODELS}.NAME] table")
        models[name] = make_table(table, name, origin)
    return models


def _settings(table: Mapping[str, Any], origin: str) -> dict[str, Setting]:
    return {key: Setting(raw, origin) for key, raw in table.items()}


def _from_environment(environment: Mapping[str, str]) -> dict[str, dict[str, Setting]]:
    layer: dict[str, dict[str, Setting]] = {}
    for name, raw in environment.items():
        if name.startswith(PREFIX) and "__" in name:
            section, key = name.removeprefix(PREFIX).lower().split("__", 1)
            if section == MODELS:
                raise ConfigError(f"environment {name}: only the file has [{MODELS}.NAME] tables")
            layer.setdefault(section, {})[key] = Setting(raw, f"environment {name}")
    return layer


def _from_flags(flags: Mapping[str, Any]) -> dict[str, dict[str, Setting]]:
    layer: dict[str, dict[str, Setting]] = {}
    for name, raw in flags.items():
        section, key = name.split(".", 1)
        flag = f"flag --{section}-{key}".replace("_", "-")
        layer.setdefault(section, {})[key] = Setting(raw, flag)
    return layer
