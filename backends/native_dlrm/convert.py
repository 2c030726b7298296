"""A DLRM as safetensors and a manifest: what ``narsil convert`` writes."""

import shutil
import tempfile
from pathlib import Path

from backends.dlrm.manifest import EXAMPLE_FILE, GOLDEN_FILE
from backends.native_dlrm.check import check_rows, check_shapes
from backends.native_dlrm.converted import ConvertedManifest, TableEntry, write_converted
from backends.native_dlrm.source import Source, find_source
from scheduler.errors import LoadError


def convert(model: str, out: Path, name: str = "") -> ConvertedManifest:
    """Write the model at ``model`` into the folder ``out``, whole or not at all.

    Raises LoadError for a model that is not served, OSError where nothing can be written.
    """
    return write_source(find_source(model, verify=True), out, name, Path(model))


def write_source(
    source: Source, out: Path, name: str = "", beside: Path | None = None
) -> ConvertedManifest:
    """Write ``source`` into the folder ``out``, whole or not at all, with what lies ``beside``.

    Raises LoadError for a model that is not served, OSError where nothing can be written.
    """
    check_shapes(source.dlrm)
    check_rows(source.dlrm)
    if out.exists():
        raise LoadError(f"{out} exists; name a folder that does not")
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        manifest = write_converted(folder, _manifest(source, name), source.dlrm)
        if beside:
            _copy_beside(beside, folder)
        for feature, path in source.ids.vocabularies.items():
            shutil.copyfile(path, folder / _vocabulary_file(source, feature))
        folder.chmod(0o755)
        folder.rename(out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return manifest


def _manifest(source: Source, name: str) -> ConvertedManifest:
    dlrm = source.dlrm
    return ConvertedManifest(
        name=name or source.name,
        version=source.version,
        tables=tuple(
            TableEntry(
                table.feature,
                len(table.data),
                table.dim,
                table.kind,
                table.mean,
                source.ids.policies.get(table.feature, "reject"),
                _vocabulary_file(source, table.feature),
            )
            for table in dlrm.tables
        ),
        interacted=dlrm.interacted,
        dense_names=source.dense_names,
        dense_relu=tuple(layer.relu for layer in dlrm.dense),
        over_relu=tuple(layer.relu for layer in dlrm.over),
        sigmoid=dlrm.sigmoid,
        output=dlrm.output,
        weights=source.weights,
        sha256="",
    )


def _vocabulary_file(source: Source, feature: str) -> str:
    """Return the name that a vocabulary has in the converted folder, "" if there is none."""
    path = source.ids.vocabularies.get(feature)
    number = list(source.ids.policies).index(feature) if path else 0
    return f"vocabulary-{number}{path.suffix}" if path else ""


def _copy_beside(model: Path, folder: Path) -> None:
    """Take along what an artifact folder has for people and tests."""
    for name in (GOLDEN_FILE, EXAMPLE_FILE):
        if (model / name).is_file():
            shutil.copyfile(model / name, folder / name)
