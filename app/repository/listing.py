"""What a repository holds, as it looks from outside: models, their versions, their files' marks.

    ROOT/ranking/config.toml    optional
    ROOT/ranking/3/...          a version: whatever its backend loads
    ROOT/ranking/4/...

Hidden and temporary names are passed over, so that a folder can be made beside and renamed.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

CONFIG_FILE = "config.toml"
CONFIG_SIGNATURE = "config.toml.sig"
_ARTIFACT = "manifest.json"  # what every export and conversion leaves
MAX_CONFIG_BYTES = 1 << 16
MAX_SIGNATURE_BYTES = 64
MAX_FILES = 10_000  # of one version
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_VERSION = re.compile(r"0|[1-9][0-9]{0,17}")
# What somebody may have meant as a version: 01, v1, 1.0.
_NUMBERED = re.compile(r"[vV+-]?\d.*")
_TEMPORARY = (".tmp", ".part", ".partial", "~")


class PlaceError(Exception):
    """Say why a repository, or a version in it, cannot be read."""


@dataclass(frozen=True, slots=True)
class FoundVersion:
    """A version's files: ``signature`` is another when they are; ``problem`` rules it out."""

    signature: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model: its configuration's text ("" for none) and its versions.

    With a ``problem`` nothing is known of it. ``config_signature`` is what lies beside the
    configuration, b"" for nothing.
    """

    config: str = ""
    versions: Mapping[str, FoundVersion] = field(default_factory=dict)
    problem: str = ""
    config_signature: bytes = b""


# By model name.
Listing: TypeAlias = Mapping[str, FoundModel]


class Place(Protocol):
    """Where a repository lies. Every call may take long, so it is made off the event loop."""

    @property
    def url(self) -> str:
        """The repository, for messages."""

    def scan(self) -> Listing:
        """Return everything that is there. Raises PlaceError."""

    def fetch(self, model: str, version: str, signature: str) -> Path:
        """Return a folder here with the files that have ``signature``. Raises PlaceError."""

    def unchanged(self, model: str, version: str, signature: str) -> bool:
        """Return whether the folder fetched still has the files of ``signature``."""

    def release(self, model: str, version: str, signature: str) -> None:
        """Forget the folder fetched."""


def is_hidden(name: str) -> bool:
    """Return whether a model's folder is none yet, or none at all."""
    return name.startswith((".", "_")) or name.endswith(_TEMPORARY)


def name_problem(name: str) -> str:
    """Say why ``name`` cannot be a model's, or ""."""
    if _MODEL.fullmatch(name) and len(name) <= 128:
        return ""
    return f"name {name[:64]!r}: use at most 128 letters, digits, '.', '_' and '-'"


def layout_problem(name: str, entries: Collection[str]) -> str:
    """Say what is wrong with what lies in the folder of the model ``name``, or ""."""
    if any(map(is_version, entries)):
        return ""
    if _ARTIFACT in entries:
        return f"it has no numbered versions: what lies in {name} belongs into {name}/1"
    meant = next((entry for entry in sorted(entries) if _NUMBERED.fullmatch(entry)), None)
    if meant is not None:
        rule = "at most 18 digits, without leading zeros"
        return f"it has no numbered versions: {told(meant)[:64]} is none ({rule})"
    return ""


def told(name: str) -> str:
    """Return ``name`` as it can be logged and answered with, whatever bytes it is made of."""
    return name if name.isprintable() else ascii(name)[1:-1]


def is_version(name: str) -> bool:
    """Return whether a folder is a version: an integer without leading zeros."""
    return _VERSION.fullmatch(name) is not None


def signature_of(files: Iterable[tuple[object, ...]]) -> str:
    """Return a mark that is another whenever any of ``files`` is."""
    return hashlib.sha256(repr(sorted(map(repr, files))).encode()).hexdigest()[:32]
