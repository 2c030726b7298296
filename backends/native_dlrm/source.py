"""Find the model at a path: an artifact folder, a bare TorchScript file or a converted folder."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from backends.dlrm.forward.model import Bytes, Dlrm
from backends.dlrm.kinds import TENSORS_FILE, Kind, check_served
from backends.dlrm.manifest import (
    MANIFEST_FILE,
    MODEL_FILE,
    PROGRAM_FILE,
    check_sha256,
    check_tables,
    model_file,
    read_manifest,
)
from backends.dlrm.ranges import MAKE_ONE
from backends.ids.declared import Declared, declared
from backends.native_dlrm.converted import read_converted
from backends.native_dlrm.errors import UnknownModelError
from backends.native_dlrm.recognise import recognise
from backends.torchscript_file.reader import read_torchscript
from backends.torchscript_file.tree import TorchScriptFile
from scheduler.errors import LoadError

_PROGRAM_SUFFIX = Path(PROGRAM_FILE).suffix
_PROGRAM = "{} is a torch.export program, which is served with --backend torch_dlrm"
_UNKNOWN = "{}: native_dlrm does not know what it computes: {}; try --backend torch_dlrm"
_SERVED = frozenset({Kind.ARTIFACT, Kind.CONVERTED, Kind.TORCHSCRIPT})


@dataclass(frozen=True, slots=True)
class Source:
    """A model and what is known about it; ``sha256`` is "" if the file was not read whole."""

    dlrm: Dlrm
    name: str
    version: str
    dense_names: tuple[str, ...] = ()
    weights: str = "unknown"
    sha256: str = ""
    ids: Declared = field(default_factory=Declared)


def find_source(path: str, *, verify: bool, copy: bool = False) -> Source:
    """Return the model at ``path``; ``verify`` reads its file once for its checksum.

    With ``copy`` the file is read into memory, not mapped. Raises LoadError, also for a file that
    is written to meanwhile.
    """
    if not path:
        raise LoadError("no model: give the path of an artifact folder or a model.pt")
    place = Path(path)
    check_served(place, _SERVED)
    before = _state(place)
    source = _read(place, verify=verify, copy=copy)
    if _state(place) != before:
        raise LoadError(f"{path} was written to while it was loaded; write beside and rename")
    return source


def _state(place: Path) -> tuple[int, int, int] | None:
    """Return what tells one state of a model's file from another, None if there is none."""
    converted = place / TENSORS_FILE
    file = model_file(place) if place.is_dir() and not converted.exists() else place
    try:
        status = (converted if converted.exists() else file).stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _read(place: Path, *, verify: bool, copy: bool) -> Source:
    if (place / TENSORS_FILE).exists():
        return _converted(place, verify=verify, copy=copy)
    if place.is_dir():
        return _artifact(place, verify=verify, copy=copy)
    if not place.is_file():
        raise LoadError(f"{place} does not exist; {MAKE_ONE.format(path=place)}")
    if place.suffix == _PROGRAM_SUFFIX:
        raise LoadError(_PROGRAM.format(place))
    dlrm = _recognised(place, read_torchscript(place, verify=verify, copy=copy))
    return Source(dlrm, place.stem, "1", sha256=_sha256(dlrm.storage) if verify else "")


def _artifact(folder: Path, *, verify: bool, copy: bool) -> Source:
    manifest = read_manifest(folder)
    path = model_file(folder)
    if path.suffix == _PROGRAM_SUFFIX:
        raise LoadError(_PROGRAM.format(path))

    def check(data: Bytes) -> None:
        if verify:
            check_sha256(path, _sha256(data), manifest)

    dlrm = _recognised(path, read_torchscript(path, check=check, copy=copy))
    found = [(table.feature, len(table.data)) for table in dlrm.tables]
    told = [(table.feature, table.rows) for table in manifest.tables]
    for (feature, rows), wanted in zip(found, told, strict=False):
        if (feature, rows) != wanted:
            raise LoadError(
                f"{folder}: the manifest's table {wanted[0]!r} of {wanted[1]} rows is "
                f"{feature!r} of {rows} rows in {MODEL_FILE}"
            )
    if len(found) != len(told):
        raise LoadError(
            f"{folder}: the manifest has {len(told)} tables, {MODEL_FILE} has {len(found)}"
        )
    check_tables(folder, manifest.tables, [(table.dim, table.mean) for table in dlrm.tables])
    names = manifest.dense_names
    ids = declared(folder / MANIFEST_FILE, manifest.tables)
    return Source(
        dlrm, manifest.name, manifest.version, names, manifest.weights, manifest.sha256, ids
    )


def _recognised(path: Path, file: TorchScriptFile) -> Dlrm:
    """Return the DLRM in ``file``. Raises UnknownModelError saying of which file, and what then."""
    try:
        return recognise(file)
    except UnknownModelError as error:
        raise UnknownModelError(_UNKNOWN.format(path, error)) from error


def _converted(folder: Path, *, verify: bool, copy: bool) -> Source:
    manifest, dlrm = read_converted(folder, verify=verify, copy=copy)
    names = manifest.dense_names
    ids = declared(folder / MANIFEST_FILE, manifest.tables)
    return Source(
        dlrm, manifest.name, manifest.version, names, manifest.weights, manifest.sha256, ids
    )


def _sha256(data: Bytes) -> str:
    """Return the SHA-256 of mapped bytes, in hex: a file opened again may be another."""
    return hashlib.sha256(data.data).hexdigest()
