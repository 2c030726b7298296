"""What an ONNX file does not say by its inputs alone: which features, how many rows each table has.

It stands in the file's own metadata under ``narsil``, or in a JSON file beside it with the file's
name and ``.json`` added, which wins: ``{"name", "version", "tables": [{"feature", "rows"}, ...],
"dense_names", "weights_sha256"}``; only ``tables``, in wire order, is needed. A table may have
``ids`` and ``vocabulary``, too.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from backends.dlrm.gather import IDS
from backends.ids.declared import Declared
from backends.jagged import JaggedLayout
from scheduler.errors import LoadError

METADATA_KEY = "narsil"
_MOST_ROWS = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Described:
    """Name a model, its tables in wire order and its dense features (or none).

    ``weights_sha256`` is that of the file of external tensors, or "".
    """

    name: str
    version: str
    layout: JaggedLayout
    dense_names: tuple[str, ...]
    weights_sha256: str
    ids: Declared


def describe(path: Path, metadata: str) -> Described:
    """Return what the JSON file beside ``path``, or else ``metadata``, says. Raises LoadError."""
    beside = path.with_name(path.name + ".json")
    where = str(beside) if beside.exists() else f"{path}: metadata {METADATA_KEY!r}"
    if not beside.exists() and not metadata:
        raise LoadError(
            f"{path} does not say how many rows its tables have, so no id could be checked; "
            f"write {beside} with a list 'tables' of 'feature' and 'rows', in wire order"
        )
    try:
        text = beside.read_text(encoding="utf-8") if beside.exists() else metadata
        return _parse(json.loads(text), path, where)
    except KeyError as error:
        raise LoadError(f"{where} lacks {error}") from error
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise LoadError(f"{where} describes no model: {error}") from error


def _parse(document: dict[str, Any], path: Path, where: str) -> Described:
    tables = document["tables"]
    features = tuple(_text("feature", table["feature"]) for table in tables)
    rows = [_rows(table["feature"], table["rows"]) for table in tables]
    if not features or len(set(features)) != len(features):
        raise ValueError("tables name no feature, or one twice")
    return Described(
        name=_text("name", document.get("name", path.stem)),
        version=_text("version", document.get("version", "1")),
        layout=JaggedLayout(IDS, features, np.asarray(rows, np.int64)),
        dense_names=tuple(_text("dense_names", name) for name in document.get("dense_names", ())),
        weights_sha256=str(document.get("weights_sha256", "")),
        ids=Declared(
            where,
            {table["feature"]: table["ids"] for table in tables if "ids" in table},
            {
                table["feature"]: path.with_name(_text("vocabulary", table["vocabulary"]))
                for table in tables
                if table.get("vocabulary")
            },
        ),
    )


def _text(key: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{key} is {value!r}, not a name")
    return value


def _rows(feature: str, rows: object) -> int:
    if type(rows) is not int or not 1 <= rows <= _MOST_ROWS:
        raise ValueError(f"rows of {feature!r} are {rows!r}, not a number over 0")
    return rows
