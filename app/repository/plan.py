"""What a model's ``config.toml`` says: its backend and options, versions, labels, split, shadow.

backend = "native_dlrm"        the keys of [models.NAME] in narsil's own file, but no path
[versions]
policy = "latest"              or "all", or "specific"
[labels]
stable = 3
canary = "latest"
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from app.config import ModelTable, make_table, parse_tables
from app.models import ModelConfig
from app.repository.listing import is_version
from app.settings import ConfigError, Setting, make_section
from app.signatures import verify_file

NEWEST = "latest"
POLICIES = ("latest", "all", "specific")
# Decided by where a version lies.
GIVEN = ("path", "name", "version")


@dataclass(frozen=True, slots=True)
class VersionOptions:
    """Choose which versions are served, besides those that labels, split and shadow name."""

    policy: str = field(default="latest", metadata={"help": "latest, all or specific"})
    latest: int = field(default=1, metadata={"help": "how many of the newest good ones"})
    only: tuple[int, ...] = field(default=(), metadata={"help": "policy specific: which"})

    def __post_init__(self) -> None:
        """Refuse what could not work. Raises ValueError."""
        if self.policy not in POLICIES:
            raise ValueError(f"policy must be {' or '.join(POLICIES)}, got {self.policy!r}")
        if self.latest < 1:
            raise ValueError(f"latest must be at least 1, got {self.latest}")
        if bool(self.only) != (self.policy == "specific"):
            raise ValueError(
                f"only is the versions of policy specific; the policy is {self.policy}"
            )


@dataclass(frozen=True, slots=True)
class GoldenOptions:
    """Say what a version's golden batch must come to before it may answer anybody."""

    required: bool = field(default=False, metadata={"help": "refuse a version without one"})
    tolerance: float = field(default=1e-5, metadata={"help": "largest difference of a score"})

    def __post_init__(self) -> None:
        """Refuse what could not work. Raises ValueError."""
        if not 0 <= self.tolerance < math.inf:
            raise ValueError(f"tolerance must be 0 or more, got {self.tolerance:g}")


@dataclass(frozen=True, slots=True)
class ShadowOptions:
    """Send copies of some requests to a version that answers nobody."""

    version: str = field(default="", metadata={"help": "a version, a label or latest"})
    share: float = field(default=0.1, metadata={"help": "of the requests, 0 to 1"})
    max_in_flight: int = field(default=1, metadata={"help": "copies at once"})
    timeout_s: float = field(default=1.0, metadata={"help": "seconds that a copy may take"})

    def __post_init__(self) -> None:
        """Refuse what could not work. Raises ValueError."""
        if not 0 <= self.share <= 1:
            raise ValueError(f"share must be 0 to 1, got {self.share:g}")
        if self.max_in_flight < 1:
            raise ValueError(f"max_in_flight must be at least 1, got {self.max_in_flight}")
        if not 0 < self.timeout_s < math.inf:
            raise ValueError(f"timeout_s must be above 0, got {self.timeout_s:g}")


@dataclass(frozen=True, slots=True)
class Plan:
    """How a model of the repository is served; ``model`` lacks the path and version."""

    model: ModelConfig
    versions: VersionOptions = field(default_factory=VersionOptions)
    golden: GoldenOptions = field(default_factory=GoldenOptions)
    labels: Mapping[str, str] = field(default_factory=dict)
    split: Mapping[str, float] = field(default_factory=dict)
    shadow: ShadowOptions | None = None

    @property
    def loading(self) -> str:
        """Say all that a loaded version depends on but its files."""
        model = self.model
        return repr((model.backend.options, model.scheduler.options, self.golden))


# By a model's name and its own table.
Resolve: TypeAlias = Callable[[str, ModelTable], ModelConfig]


class Planner(Protocol):
    """Read a config file."""

    def __call__(self, name: str, text: str, signature: bytes = b"", /) -> Plan:
        """Return what the ``text`` of the model ``name`` says, if its ``signature`` will do.

        Raises ConfigError, PluginError, or LoadError for the signature.
        """


def plan_of(
    resolve: Resolve, name: str, text: str, signature: bytes = b"", *, artifact_keys: str = ""
) -> Plan:
    """Return what ``text``, the config file of the model ``name``, says.

    ``resolve`` lets the rest of it meet the general settings. With ``artifact_keys``, a file of
    keys, one of them must have signed it. Raises ConfigError, PluginError or LoadError.
    """
    origin = f"{name}/config.toml"
    if text:
        verify_file(origin, text.encode(), signature, artifact_keys)
    tables = parse_tables(text, origin)
    own = {section: _table(tables, section, origin) for section in ("versions", "golden")}
    labels, split = _table(tables, "labels", origin), _table(tables, "split", origin)
    shadow = _table(tables, "shadow", origin)
    for key in GIVEN:
        if key in tables:
            raise ConfigError(f"{origin}: {key} is given by where the version lies")
    plan = Plan(
        resolve(name, make_table(tables, name, origin)),
        make_section("versions", VersionOptions, own["versions"]).options,
        make_section("golden", GoldenOptions, own["golden"]).options,
        {label: _label(label, target, origin) for label, target in labels.items()},
        {part: _weight(part, weight, origin) for part, weight in split.items()},
        make_section("shadow", ShadowOptions, _with_text(shadow)).options if shadow else None,
    )
    _check_targets(plan, origin)
    return plan


def _table(tables: dict[str, Any], section: str, origin: str) -> dict[str, Setting]:
    table = tables.pop(section, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{origin}: {section!r} must be a table")
    return {key: Setting(raw, origin) for key, raw in table.items()}


def _with_text(shadow: dict[str, Setting]) -> dict[str, Setting]:
    """Let a version be written as a number too."""
    given = shadow.get("version")
    if given is not None and type(given.raw) is int:
        return {**shadow, "version": Setting(str(given.raw), given.origin)}
    return shadow


def _label(label: str, target: Setting, origin: str) -> str:
    version = str(target.raw) if type(target.raw) is int else target.raw
    if (
        is_version(label)
        or label == NEWEST
        or not label.replace("-", "").replace("_", "").isalnum()
    ):
        raise ConfigError(
            f"{origin}: labels.{label}: a label has letters, digits, '-' and '_', and is neither"
            f" a number nor {NEWEST!r}"
        )
    if not isinstance(version, str) or not (version == NEWEST or is_version(version)):
        raise ConfigError(
            f"{origin}: labels.{label} must be a version or {NEWEST!r}, got {target.raw!r}"
        )
    return version


def _weight(part: str, weight: Setting, origin: str) -> float:
    if type(weight.raw) not in {int, float} or not 0 <= weight.raw < math.inf:
        raise ConfigError(
            f"{origin}: split.{part} must be a number of 0 or more, got {weight.raw!r}"
        )
    return float(weight.raw)


def _check_targets(plan: Plan, origin: str) -> None:
    named = {"split." + part: part for part in plan.split}
    if plan.shadow:
        named["shadow.version"] = plan.shadow.version
    for key, target in named.items():
        if not (target == NEWEST or is_version(target) or target in plan.labels):
            known = ", ".join(plan.labels) or "none"
            raise ConfigError(
                f"{origin}: {key}: {target!r} is no version and no label; labels: {known}"
            )
    if plan.split and not sum(plan.split.values()):
        raise ConfigError(f"{origin}: split gives nobody a share above 0")
