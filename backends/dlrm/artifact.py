"""Find an artifact's files, and make sure that they are the ones its manifest describes."""

import os
from dataclasses import dataclass
from pathlib import Path

from backends.dlrm.kinds import Kind, check_served
from backends.dlrm.manifest import Manifest, file_sha256, model_file, read_manifest, verify
from backends.dlrm.ranges import MAKE_ONE
from scheduler.errors import LoadError

_SERVED = frozenset({Kind.ARTIFACT, Kind.TORCHSCRIPT, Kind.PROGRAM})


@dataclass(frozen=True, slots=True)
class Artifact:
    """A model file whose hash is known, and its manifest if it came in a folder."""

    model_file: Path
    sha256: str
    manifest: Manifest | None
    # What the file system said of the file before it was hashed; it is opened again to be loaded.
    stat: os.stat_result | None = None

    def check_unchanged(self) -> None:
        """Raise LoadError if another file has taken the place of the one that was hashed."""
        if self.stat is not None and _identity(_stat(self.model_file)) != _identity(self.stat):
            raise LoadError(f"{self.model_file} was replaced while it was loaded; load it again")


def _identity(stat: os.stat_result) -> tuple[int, ...]:
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def find_artifact(path: str) -> Artifact:
    """Locate and verify the artifact at ``path``. Raises LoadError."""
    if not path:
        raise LoadError("no model: give the path of an artifact folder or a model.pt")
    place = Path(path)
    check_served(place, _SERVED)
    if place.is_dir():
        manifest = read_manifest(place)
        file = model_file(place)
        stat = _stat(file)
        verify(place, manifest)
        return Artifact(file, manifest.sha256, manifest, stat)
    if not place.is_file():
        raise LoadError(f"{place} does not exist; {MAKE_ONE.format(path=place)}")
    stat = _stat(place)
    return Artifact(place, file_sha256(place), None, stat)


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise LoadError(f"cannot read {path}: {error}") from error
