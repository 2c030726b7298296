"""What a model's files and the operator say about ids, made into rules. Reads vocabularies."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, TypeAlias

from backends.ids.policy import REJECT, Policy, choose_policies, parse_policy
from backends.ids.rules import IdRules, SettlesIds
from backends.ids.vocabulary import Vocabulary, read_vocabulary
from backends.jagged import JaggedLayout
from scheduler.errors import LoadError

# Makes it of the policies and the rows of all tables, in wire order; None if it cannot.
MakeFaster: TypeAlias = Callable[[Sequence[Policy], Sequence[int]], SettlesIds | None]
_NOTHING: Mapping[str, str] = MappingProxyType({})
_NUMBERS_ONLY = ("clamp", "hash")


class TableIds(Protocol):
    """A table as a manifest has it, as far as its ids go."""

    @property
    def feature(self) -> str:
        """The id feature."""

    @property
    def ids(self) -> str:
        """The policy, as a text."""

    @property
    def vocabulary(self) -> str:
        """Its vocabulary's file, relative to the folder of the manifest, or ""."""


@dataclass(frozen=True, slots=True)
class Declared:
    """What the files say: policies and vocabularies by feature; ``where`` names the manifest."""

    where: str = ""
    policies: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    vocabularies: Mapping[str, Path] = field(default_factory=dict)


def declared(manifest: Path, tables: Sequence[TableIds]) -> Declared:
    """Return what the ``tables`` of ``manifest`` say. Raises LoadError."""
    vocabularies = {}
    for table in tables:
        if table.vocabulary:
            if Path(table.vocabulary).name != table.vocabulary:
                raise LoadError(
                    f"{manifest}: vocabulary {table.vocabulary!r:.80} of {table.feature!r} is no"
                    " name of a file beside it"
                )
            vocabularies[table.feature] = manifest.with_name(table.vocabulary)
    return Declared(str(manifest), {each.feature: each.ids for each in tables}, vocabularies)


def make_rules(
    layout: JaggedLayout,
    said: Declared,
    chosen: Sequence[str],
    make_faster: MakeFaster | None = None,
) -> IdRules:
    """Return the rules of the model's files, unless the option ``chosen`` has others.

    ``make_faster`` is asked, if any table does not reject, for what does it faster than NumPy.

    Raises LoadError naming the manifest or the option, the feature and what is wrong.
    """
    tables = dict(zip(layout.features, layout.table_rows.tolist(), strict=True))
    policies = dict.fromkeys(tables, REJECT) | _policies(tables, said)
    try:
        policies |= choose_policies(tables, chosen)
    except ValueError as error:
        raise LoadError(f"--ids: {error}") from error
    vocabularies = _vocabularies(tables, said)
    for feature in vocabularies:
        if policies[feature].name in _NUMBERS_ONLY:
            raise LoadError(
                f"feature {feature!r} has a vocabulary, so the policy {policies[feature].text} "
                "cannot be its own: a text is no number; take reject, zero or default_row:ROW"
            )
    by_table = [policies[feature] for feature in layout.features]
    replaces = any(policy != REJECT for policy in by_table)
    faster = make_faster(by_table, list(tables.values())) if make_faster and replaces else None
    return IdRules(layout, by_table, vocabularies, faster)


def _policies(tables: Mapping[str, int], said: Declared) -> dict[str, Policy]:
    policies = {}
    for feature, text in said.policies.items():
        if feature in tables:
            try:
                policies[feature] = parse_policy(text, tables[feature])
            except ValueError as error:
                raise LoadError(f"{said.where}: ids of {feature!r}: {error}") from error
    return policies


def _vocabularies(tables: Mapping[str, int], said: Declared) -> dict[str, Vocabulary]:
    return {
        feature: read_vocabulary(path, feature, tables[feature])
        for feature, path in said.vocabularies.items()
        if feature in tables
    }
