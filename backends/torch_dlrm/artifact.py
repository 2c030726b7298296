"""Settle what is known about an artifact: flags, then manifest, then graph."""

from dataclasses import dataclass

import numpy as np

from backends.dlrm.artifact import Artifact
from backends.dlrm.gather import IDS
from backends.jagged import JaggedLayout
from backends.torch_dlrm.options import TorchDlrmOptions
from scheduler.errors import LoadError, first_of


@dataclass(frozen=True, slots=True)
class Derived:
    """What the file itself says; an empty field could not be told."""

    feature_names: tuple[str, ...]
    table_rows: tuple[int, ...]
    dense_features: int
    device: str


@dataclass(frozen=True, slots=True)
class Facts:
    """All that serving needs to know about a model; ``dense_names`` may be empty."""

    name: str
    version: str
    layout: JaggedLayout
    dense_features: int
    dense_names: tuple[str, ...]


def settle(options: TorchDlrmOptions, artifact: Artifact, derived: Derived) -> Facts:
    """Combine the sources. Raises LoadError naming the flag that gives a missing fact."""
    manifest = artifact.manifest
    tables = manifest.tables if manifest else ()
    features = (
        options.feature_names or tuple(table.feature for table in tables) or derived.feature_names
    )
    rows = options.table_rows or tuple(table.rows for table in tables) or derived.table_rows
    dense_names = manifest.dense_names if manifest else ()
    dense = options.dense_features or len(dense_names) or derived.dense_features
    _require(features, "the names of the id features", "--feature-names")
    _require(rows, "the rows of each table", "--table-rows")
    _require(dense, "the number of dense features", "--dense-features")
    _agree("--feature-names", len(features), "--table-rows", len(rows))
    _check_against_file(features, rows, dense, derived)
    return Facts(
        name=options.name or (manifest.name if manifest else artifact.model_file.stem),
        version=options.version or (manifest.version if manifest else "1"),
        layout=JaggedLayout(IDS, features, np.asarray(rows, np.int64)),
        dense_features=dense,
        dense_names=dense_names if len(dense_names) == dense else (),
    )


def _require(value: object, what: str, flag: str) -> None:
    if not value:
        raise LoadError(f"the model file does not tell {what}; give {flag}")


def _agree(left: str, left_count: int, right: str, right_count: int) -> None:
    if left_count != right_count:
        raise LoadError(f"{left} names {left_count} features, {right} {right_count}")


def _check_against_file(
    features: tuple[str, ...], rows: tuple[int, ...], dense: int, derived: Derived
) -> None:
    """Refuse what the file contradicts: more rows than a table has would read past its end."""
    if derived.feature_names and len(features) != len(derived.feature_names):
        raise LoadError(
            f"the manifest or --feature-names: {len(features)} given, "
            f"the model file has {len(derived.feature_names)}"
        )
    if features != derived.feature_names and sorted(features) == sorted(derived.feature_names):
        raise LoadError(
            f"the manifest or --feature-names: the order {first_of(features)} is not that of the"
            f" model file, {first_of(derived.feature_names)}"
        )
    for feature, given, found in zip(features, rows, derived.table_rows, strict=False):
        if given != found:
            raise LoadError(
                f"the manifest or --table-rows: {feature!r} has {found} rows in the model file, "
                f"not {given}"
            )
    if derived.dense_features and dense != derived.dense_features:
        raise LoadError(
            f"the manifest or --dense-features: {dense} given, "
            f"the model file takes {derived.dense_features}"
        )
