"""Find an artifact's files, and make sure that they are the ones its manifest describes."""

from dataclasses import dataclass
from pathlib import Path

from backends.dlrm.manifest import Manifest, file_sha256, model_file, read_manifest, verify
from scheduler.errors import LoadError


@dataclass(frozen=True, slots=True)
class Artifact:
    """A model file whose hash is known, and its manifest if it came in a folder."""

    model_file: Path
    sha256: str
    manifest: Manifest | None


def find_artifact(path: str) -> Artifact:
    """Locate and verify the artifact at ``path``. Raises LoadError."""
    if not path:
        raise LoadError("no model: give the path of an artifact folder or a model.pt")
    place = Path(path)
    if place.is_dir():
        manifest = read_manifest(place)
        verify(place, manifest)
        return Artifact(model_file(place), manifest.sha256, manifest)
    if not place.is_file():
        raise LoadError(f"{place} does not exist; make one with: narsil export {place}")
    return Artifact(place, file_sha256(place), None)
