"""What a file or folder is, told by names and first bytes: nothing in it is run or unpickled."""

import enum
import zipfile
from collections.abc import Collection
from pathlib import Path

from backends.dlrm.manifest import MANIFEST_FILE, MODEL_FILE, PROGRAM_FILE
from scheduler.errors import LoadError

# Of a folder of narsil convert, and of a DCP checkpoint.
TENSORS_FILE, METADATA_FILE = "model.safetensors", ".metadata"
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


# What tells a folder, the surest first.
_FILES = {
    Kind.CONVERTED: (TENSORS_FILE,),
    Kind.DCP: (METADATA_FILE,),
    Kind.ONNX: (_ONNX_FILE,),
    Kind.ARTIFACT: (MANIFEST_FILE, MODEL_FILE, PROGRAM_FILE),
}
_BACKENDS = {
    Kind.ARTIFACT: "torch_dlrm or native_dlrm",
    Kind.CONVERTED: "native_dlrm",
    Kind.ONNX: "onnx_dlrm",
    Kind.TORCHSCRIPT: "torch_dlrm or native_dlrm",
    Kind.PROGRAM: "torch_dlrm",
}


def check_served(path: Path, kinds: Collection[Kind]) -> None:
    """Refuse what is none of ``kinds``, which a backend serves. Raises LoadError saying what to do.

    What is nothing known passes, unless it is part of a model: whoever reads it says better what is
    wrong.
    """
    try:
        found = _kinds_of(path)
    except LoadError:
        if path.is_file() and _whole(path):
            raise
        return
    if not set(found).isdisjoint(kinds):
        return
    kind = found[0]
    if kind in _BACKENDS:
        raise LoadError(f"{path} ({kind.value}) is served with --backend {_BACKENDS[kind]}")
    more = f"narsil inspect {path} says what it is"
    if kind is not Kind.PACKAGE:
        more += f", narsil export DIR --from {path} makes of it what is served"
    raise LoadError(f"{path} ({kind.value}) is not served as it is: {more}")


def kind_of(path: Path) -> Kind:
    """Return what ``path`` is. Raises LoadError where it is nothing known."""
    return _kinds_of(path)[0]


def _kinds_of(path: Path) -> list[Kind]:
    try:
        return _folder(path) if path.is_dir() else [_file(path)]
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile) as error:
        raise LoadError(f"cannot read {path}: {error}") from error


def _folder(path: Path) -> list[Kind]:
    found = [
        kind for kind, names in _FILES.items() if any((path / each).exists() for each in names)
    ]
    if found:
        return found
    raise LoadError(
        f"{path} is no folder of a model: it has no {MANIFEST_FILE}, {TENSORS_FILE}, "
        f"{_ONNX_FILE} or {METADATA_FILE}, nor models with numbered versions"
    )


def _file(path: Path) -> Kind:
    if not path.is_file():  # a pipe would be waited for
        raise LoadError(f"{path} is no file" if path.exists() else f"{path} does not exist")
    if path.name == TENSORS_FILE and (path.parent / MANIFEST_FILE).is_file():
        raise LoadError(f"{path} is no checkpoint{_whole(path)}")
    if path.suffix in {_ONNX, _SAFETENSORS}:
        return Kind.ONNX if path.suffix == _ONNX else Kind.STATE_DICT
    if not zipfile.is_zipfile(path):
        raise LoadError(
            f"{path} is neither .onnx, .safetensors nor a zip as PyTorch 1.6 and later write it"
            f"{_whole(path)}"
        )
    return _zip(path)


def _zip(path: Path) -> Kind:
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
    raise LoadError(f"{path} is a zip, but nothing that PyTorch writes{_whole(path)}")


def _whole(path: Path) -> str:
    """Return words for the model's folder that the file ``path`` is a part of, "" if of none."""
    if path.name in {MODEL_FILE, PROGRAM_FILE, _ONNX_FILE}:  # a model by itself, though damaged
        return ""
    try:
        kind, *_ = _folder(path.parent)
    except LoadError:
        return ""
    return f"; it lies in {path.parent} ({kind.value}): name that folder"
