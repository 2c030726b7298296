"""The file of API keys: a TOML table a key, with the hash of the key, never the key.

[ranker]
sha256 = "9f86d081..."         or a list of two, while a new key takes over
requests_per_s = 500           0, the default, is without a limit
rows_per_s = 100_000
burst_s = 1.0                  so many seconds' worth may come at once
control = false                may load and unload models, if server.model_control is on,
                               and register shared memory, if server.shared_memory lets clients
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.settings import ConfigError, Setting, make_section

MAX_KEYS = 1000
# Names are values of a label in the metrics.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
MAX_RATE = 1e12


@dataclass(frozen=True, slots=True)
class KeyOptions:
    """What one table says."""

    sha256: tuple[str, ...] = field(default=(), metadata={"help": "hashes of the key, in hex"})
    requests_per_s: float = field(default=0.0, metadata={"help": "0: no limit"})
    rows_per_s: float = field(default=0.0, metadata={"help": "0: no limit"})
    burst_s: float = field(default=1.0, metadata={"help": "seconds' worth that may come at once"})
    control: bool = field(default=False, metadata={"help": "may load and unload models"})

    def __post_init__(self) -> None:
        """Refuse what could not work. Raises ValueError, which names no hash."""
        if not self.sha256:
            raise ValueError("sha256 is missing: the SHA-256 of the key, 64 hexadecimal digits")
        for one in self.sha256:
            if not _SHA256.fullmatch(one):
                raise ValueError(
                    "sha256 must be 64 hexadecimal digits (the hash of the key, not the key), got"
                    f" {len(one)} characters"
                )
        for name, least in (("requests_per_s", 0.0), ("rows_per_s", 0.0), ("burst_s", 1e-3)):
            value = getattr(self, name)
            if not least <= value <= MAX_RATE:  # nor is NaN
                raise ValueError(f"{name} must be {least:g} to {MAX_RATE:g}, got {value:g}")

    @property
    def digests(self) -> tuple[bytes, ...]:
        """The hashes."""
        return tuple(bytes.fromhex(one) for one in self.sha256)


def parse_keys(content: bytes, origin: str) -> Mapping[str, KeyOptions]:
    """Return the keys of a file by name. Raises ConfigError, which repeats nothing secret."""
    try:
        tables = tomllib.loads(content.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{origin}: {error}") from error
    if len(tables) > MAX_KEYS:
        raise ConfigError(f"{origin}: {len(tables)} keys, the limit is {MAX_KEYS}")
    keys = {name: _key(name, table, origin) for name, table in tables.items()}
    _check_unique(keys, origin)
    return keys


def _key(name: str, table: Any, origin: str) -> KeyOptions:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{origin}: {name[:64]!r}: a name has 1 to 64 of A-Z a-z 0-9 _ -")
    if not isinstance(table, dict):
        raise ConfigError(f"{origin}: {name} stands outside a [NAME] table")
    if isinstance(table.get("sha256"), str):
        table["sha256"] = [table["sha256"]]
    given = {key: Setting(value, origin) for key, value in table.items()}
    try:
        options: KeyOptions = make_section(name, KeyOptions, given).options
    except AttributeError as error:  # a hash that is no text
        raise ConfigError(f"{origin}: section {name!r}: sha256 must be text") from error
    return options


def _check_unique(keys: Mapping[str, KeyOptions], origin: str) -> None:
    owners: dict[bytes, str] = {}
    for name, options in keys.items():
        for digest in options.digests:
            if digest in owners:
                raise ConfigError(f"{origin}: {owners[digest]} and {name} have the same key")
            owners[digest] = name
