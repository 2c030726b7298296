"""Whether an artifact may be written somewhere; needs no PyTorch."""

from pathlib import Path

from backends.dlrm.manifest import MANIFEST_FILE
from backends.torch_dlrm.export.errors import ExportError


def check_free(out: Path, *, replace: bool) -> None:
    """Raise ExportError if ``out`` exists, unless it is an artifact to ``replace``."""
    if out.exists() and not (replace and (out / MANIFEST_FILE).exists()):
        raise ExportError(f"{out} exists; --force replaces an artifact, and nothing else")
