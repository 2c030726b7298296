"""What a file or folder is, told by names and first bytes: nothing in it is run or unpickled."""

import enum
import zipfile
from pathlib import Path

from backends.checkpoints.dcp import METADATA_FILE
from backends.dlrm.manifest import MANIFEST_FILE, model_file
from backends.native_dlrm.converted import TENSORS_FILE
from scheduler.errors import LoadError

_ONNX_FILE, _ONNX, _SAFETENSORS = "model.onnx", ".onnx", ".safetensors"


class Kind(enum.Enum):
    """Each with the words for it."""

    ARTIFACT = "artifact folder of narsil export"
    CONVERTED = "converted folder of narsil convert"
    ONNX = "ONNX model"
    DCP = "DCP checkpoint (torch.distributed.checkpoint)"
    TORCHSCRIPT = "TorchScript model"
    PROGRAM = "torch.export program"
    STATE_DICT = "state dict"
    PACKAGE = "torch.package archive"


def kind_of(path: Path) -> Kind:
    """Return what ``path`` is. Raises LoadError where it is nothing known."""
    try:
        return _folder(path) if path.is_dir() else _file(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise LoadError(f"cannot read {path}: {error}") from error


def _folder(path: Path) -> Kind:
    if (path / TENSORS_FILE).exists():
        return Kind.CONVERTED
    if (path / METADATA_FILE).exists():
        return Kind.DCP
    if (path / _ONNX_FILE).exists():
        return Kind.ONNX
    if (path / MANIFEST_FILE).exists() or model_file(path).exists():
        return Kind.ARTIFACT
    raise LoadError(
        f"{path} is no folder of a model: it has no {MANIFEST_FILE}, {TENSORS_FILE}, "
        f"{_ONNX_FILE} or {METADATA_FILE}, nor models with numbered versions"
    )


def _file(path: Path) -> Kind:
    if not path.exists():
        raise LoadError(f"{path} does not exist")
    if path.suffix in {_ONNX, _SAFETENSORS}:
        return Kind.ONNX if path.suffix == _ONNX else Kind.STATE_DICT
    if not zipfile.is_zipfile(path):
        raise LoadError(
            f"{path} is neither .onnx, .safetensors nor a zip as PyTorch 1.6 and later write it"
        )
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    below = {name.partition("/")[2] for name in names}
    if ".data/extern_modules" in below:
        return Kind.PACKAGE
    if any(name.startswith("code/") for name in below):
        return Kind.TORCHSCRIPT
    if "archive_format" in below:
        return Kind.PROGRAM
    if "data.pkl" in below:
        return Kind.STATE_DICT
    raise LoadError(f"{path} is a zip, but nothing that PyTorch writes")
