"""manifest.json: what an artifact folder says about its model.pt."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scheduler.errors import LoadError

MODEL_FILE, MANIFEST_FILE, GOLDEN_FILE = "model.pt", "manifest.json", "golden.npz"
# Before an output's name in the golden file: the artifact's scores; artifacts made before 2026-12
# have the second.
GOLDEN_SCORES = ("served.", "int8.")
# What takes the place of MODEL_FILE in a folder whose model is a torch.export program.
PROGRAM_FILE = "model.pt2"
EXAMPLE_FILE = "example.json"
# What narsil train puts beside them: FP32 weights, and labelled rows held out from training.
WEIGHTS_FILE, HELDOUT_FILE = "weights.safetensors", "heldout.npz"
FORMAT = 1
# The lists that the rest relies on.
_LISTS = ("tables", "dense_names", "outputs")
# What the manifest of a converted model has as its "kind"; ours has none.
NATIVE_KIND = "native_dlrm"


@dataclass(frozen=True, slots=True)
class Table:
    """One id feature and its embedding table.

    ``ids`` says what becomes of ids without a row (``backends.ids.policy``), ``vocabulary`` names
    the file of its texts, relative to the folder, or is "".
    """

    feature: str
    rows: int
    dim: int
    pooling: str = "sum"
    ids: str = "reject"
    vocabulary: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Describe one artifact; ``tables`` and ``dense_names`` are in wire order.

    ``weights`` says where the weights come from, ``sha256`` is that of model.pt, ``score_std`` the
    spread of the golden scores: near zero, no comparison with them means anything.
    """

    name: str
    version: str
    device: str
    tables: tuple[Table, ...]
    dense_names: tuple[str, ...]
    dense_layers: tuple[int, ...]
    over_layers: tuple[int, ...]
    dtypes: Mapping[str, str]
    outputs: tuple[str, ...]
    weights: str
    score_std: float
    libraries: Mapping[str, str]
    sha256: str
    format: int = FORMAT


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write ``manifest`` into ``folder``."""
    text = json.dumps(dataclasses.asdict(manifest), indent=2)
    (folder / MANIFEST_FILE).write_text(text + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of ``folder``. Raises LoadError naming the file and what is wrong."""
    path = folder / MANIFEST_FILE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(document, dict) and document.get("kind") == NATIVE_KIND:
            raise LoadError(f"{path} is of narsil convert: serve it with --backend {NATIVE_KIND}")
        return _parse(document)
    except FileNotFoundError as error:
        raise LoadError(
            f"{folder} has no {MANIFEST_FILE}, which narsil export writes beside the model; "
            "pass the path of the model file itself to serve a bare TorchScript model"
        ) from error
    except KeyError as error:
        raise LoadError(f"{path} lacks {error}") from error
    except RecursionError as error:
        raise LoadError(f"{path} is nested too deeply") from error
    except (OSError, ValueError, TypeError) as error:
        raise LoadError(f"{path} is not a manifest of this version: {error}") from error


def check_tables(folder: Path, told: Sequence[Table], found: Sequence[tuple[int, bool]]) -> None:
    """Compare the manifest's tables with those ``found``: width, and whether bags are averaged.

    Raises LoadError naming the table.
    """
    for table, (dim, averaged) in zip(told, found, strict=False):
        pooling = "mean" if averaged else "sum"
        if (table.dim, table.pooling) != (dim, pooling):
            raise LoadError(
                f"{folder / MANIFEST_FILE}: {table.feature!r} has dim {table.dim!r:.64} and pooling"
                f" {table.pooling!r:.64}, in the model file {dim} and {pooling!r}"
            )


def _parse(document: dict[str, Any]) -> Manifest:
    if not isinstance(document, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004
    if document["format"] != FORMAT:
        raise ValueError(f"format is {document['format']}, this version reads {FORMAT}")
    known = {field.name for field in dataclasses.fields(Manifest)}
    values: dict[str, Any] = {name: _frozen(document[name]) for name in known}
    for name in _LISTS:
        if not isinstance(document[name], list):
            raise ValueError(f"{name} is {document[name]!r:.64}, not a list")  # noqa: TRY004
    values["tables"] = tuple(map(_table, range(len(document["tables"])), document["tables"]))
    manifest = Manifest(**values)
    _check_types(manifest)
    return manifest


def _table(number: int, entry: object) -> Table:
    """Return one of the tables. Raises ValueError."""
    if not isinstance(entry, dict):
        raise ValueError(f"tables[{number}] is {entry!r:.64}, not an object")  # noqa: TRY004
    fields = dataclasses.fields(Table)
    needed = {field.name for field in fields if field.default is dataclasses.MISSING}
    if missing := sorted(needed - entry.keys()):
        raise ValueError(f"tables[{number}] lacks {missing[0]!r}")
    if unknown := sorted(entry.keys() - {field.name for field in fields}):
        raise ValueError(f"tables[{number}] has {unknown[0]!r:.64}, which is not known")
    return Table(**entry)


def _check_types(manifest: Manifest) -> None:
    """Refuse what the rest relies on and JSON leaves open. Raises ValueError."""
    features: list[object] = [table.feature for table in manifest.tables]
    texts: dict[str, Sequence[object]] = {
        "name": (manifest.name,),
        "version": (manifest.version,),
        "tables": features,
        "dense_names": manifest.dense_names,
        "outputs": manifest.outputs,
    }
    for field, given in texts.items():
        for text in given:
            if not isinstance(text, str) or not text:
                raise ValueError(f"{field}: {text!r:.64} is not a name")
    for table in manifest.tables:
        if type(table.rows) is not int or table.rows < 1:
            raise ValueError(f"rows of {table.feature!r} are {table.rows!r}, not a number over 0")
        if not isinstance(table.vocabulary, str):
            raise ValueError(f"vocabulary of {table.feature!r} is no text")  # noqa: TRY004
    if len(set(features)) != len(features):
        raise ValueError("two tables have the same feature")


def _frozen(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def model_file(folder: Path) -> Path:
    """Return the model file of an artifact folder, whether it exists or not."""
    program = folder / PROGRAM_FILE
    return program if program.exists() else folder / MODEL_FILE


def verify(folder: Path, manifest: Manifest) -> None:
    """Refuse a model file other than the one the manifest describes. Raises LoadError."""
    path = model_file(folder)
    try:
        check_sha256(path, file_sha256(path), manifest)
    except OSError as error:
        raise LoadError(f"cannot read {path}: {error}") from error


def check_sha256(path: Path, found: str, manifest: Manifest) -> None:
    """Refuse a model file whose hash is another than the manifest's. Raises LoadError."""
    if found != manifest.sha256:
        raise LoadError(
            f"{path} has SHA-256 {found}, but {MANIFEST_FILE} says {manifest.sha256}: the file is "
            "damaged or was replaced; export it again"
        )
