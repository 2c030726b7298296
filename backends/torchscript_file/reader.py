"""``read_torchscript``: a TorchScript file as a tree of modules, without PyTorch."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from backends.torchscript_file.archive import Archive, Check
from backends.torchscript_file.errors import NoTorchScriptError, TorchScriptFileError
from backends.torchscript_file.tree import Module, Tensor, TorchScriptFile, Value
from backends.torchscript_file.unpickler import storage_type, unpickle

# The format of the zip, since PyTorch 1.6; the largest that PyTorch 2.13 reads.
_VERSIONS = range(3, 11)
_TREE = "data.pkl"
_PROGRAM = "archive_format"
_CODE, _TEXT = "code/", ".py"
_MOST_AXES = 32
# A DLRM of 26 tables has a tree of 16 KB and 143 KB of code; each is read with Python's lock held.
_MOST_LINE_BYTES = 1 << 10
_MOST_TREE_BYTES = 1 << 20
_MOST_CODE_BYTES = 4 << 20
# NumPy has no bfloat16, and a quantised tensor is no array.
_DTYPES = {
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "<i1",
    "ByteStorage": "<u1",
    "BoolStorage": "|b1",
}


def read_torchscript(
    path: Path, *, verify: bool = False, check: Check | None = None, copy: bool = False
) -> TorchScriptFile:
    """Map the file at ``path`` and return its tree; no tensor is read, no code in it runs.

    ``verify`` reads all of it once, to compare checksums; ``check`` is given its bytes first. With
    ``copy`` the file is read into memory, not mapped.
    Raises TorchScriptFileError, or what ``check`` does.
    """
    archive = Archive(path, check, copy=copy)
    if not any(name.startswith(_CODE) for name in archive.names()):
        raise NoTorchScriptError(f"{path} {_without_code(archive)}")
    version = _version(archive)
    tensors = _Tensors(archive)
    tree = archive.read(_TREE, _MOST_TREE_BYTES)
    root = unpickle(tree, f"{path}: {_TREE}", tensors.storage, tensors.tensor)
    if not isinstance(root, Module):
        raise NoTorchScriptError(f"{path} holds a {type(root).__name__}, not a scripted module")
    if verify:
        archive.verify()
    return TorchScriptFile(root, archive.bytes, _code(archive), version)


def _without_code(archive: Archive) -> str:
    """Say what a zip without code is instead of a scripted module."""
    names = set(archive.names())
    if _PROGRAM in names:
        return "is a torch.export program, not a scripted module: call it .pt2, for torch_dlrm"
    if _TREE in names:
        return (
            "holds what torch.save wrote, not a scripted module; "
            "of a state dict, make an artifact with: narsil export --from"
        )
    return "is no TorchScript file: it has no code"


def _version(archive: Archive) -> int:
    text = archive.read("version", _MOST_LINE_BYTES).strip()
    version = int(text) if text.isdigit() and len(text) < 4 else 0
    if version not in _VERSIONS:
        raise TorchScriptFileError(
            f"{archive.path} has format version {text[:20]!r}; this reader knows "
            f"{_VERSIONS.start} to {_VERSIONS.stop - 1}"
        )
    # Files of PyTorch before 2.1 do not say; it was little-endian wherever it ran.
    order = "byteorder"
    if order in archive.names() and archive.read(order, _MOST_LINE_BYTES) != b"little":
        raise TorchScriptFileError(f"{archive.path} is big-endian; only little-endian is read")
    return version


def _code(archive: Archive) -> dict[str, str]:
    code, left_bytes = {}, _MOST_CODE_BYTES
    for name in archive.names():
        if name.startswith(_CODE) and name.endswith(_TEXT):
            text = archive.read(name, left_bytes)
            left_bytes -= len(text)
            code[name.removeprefix(_CODE)] = text.decode("utf-8", "replace")
    return code


class _Tensors:
    """Makes arrays over the mapping; every bound is checked, since the file sets them all."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    def storage(self, reference: tuple[Value, ...]) -> Tensor:
        """Return what the persistent id ("storage", class, record, device, items) means."""
        if len(reference) != 5 or reference[0] != "storage":
            raise ValueError("a persistent id is no storage")
        _, kind, key, _, items = reference
        dtype = _dtype(storage_type(kind))
        count = _natural(items)
        if not isinstance(key, str):
            raise TypeError(f"a {type(key).__name__} is no name of a storage")
        record = self._archive.view(f"data/{key}")
        if record.size != count * dtype.itemsize:
            raise ValueError(
                f"storage {key!r} has {record.size} bytes, {count} items of {dtype} need "
                f"{count * dtype.itemsize}"
            )
        return record.view(dtype)

    def tensor(self, arguments: tuple[Value, ...]) -> Tensor:
        """Return the tensor (storage, offset, sizes, strides, ...) as a view of its storage."""
        if len(arguments) < 4:
            raise ValueError("a tensor lacks its sizes")
        storage, offset, sizes, strides = arguments[:4]
        if not isinstance(storage, np.ndarray):
            raise TypeError("a tensor has no storage")
        shape, steps, start = _naturals(sizes), _naturals(strides), _natural(offset)
        if len(shape) != len(steps):
            raise ValueError(f"a tensor of sizes {shape} has strides {steps}")
        if math.prod(shape) > storage.size:
            # Strides of 0 would make a few bytes stand for any number of items.
            raise ValueError(f"a tensor of sizes {shape} has a storage of {storage.size} items")
        reach = sum((size - 1) * step for size, step in zip(shape, steps, strict=True))
        if 0 not in shape and start + reach >= storage.size:
            raise ValueError(f"a tensor of sizes {shape} reaches past its {storage.size} items")
        return _strided(storage[min(start, storage.size) :], shape, steps)


def _strided(items: Tensor, shape: tuple[int, ...], steps: tuple[int, ...]) -> Tensor:
    strides = tuple(step * items.itemsize for step in steps)
    if 0 in shape:
        return np.empty(shape, items.dtype)
    return np.lib.stride_tricks.as_strided(items, shape, strides, writeable=False)


def _dtype(storage: str) -> np.dtype[Any]:
    text = _DTYPES.get(storage)
    if text is None:
        raise ValueError(f"tensors of {storage} are not read; known: {', '.join(_DTYPES)}")
    return np.dtype(text)


def _naturals(values: Value) -> tuple[int, ...]:
    if not isinstance(values, tuple):
        raise TypeError("sizes or strides are no tuple")
    if len(values) > _MOST_AXES:
        raise ValueError(f"a tensor has {len(values)} axes, more than {_MOST_AXES}")
    return tuple(_natural(value) for value in values)


def _natural(value: Value) -> int:
    # Only the type is said: the text of nested lists may be longer than memory.
    if type(value) is not int:
        raise TypeError(f"a {type(value).__name__} is no size")
    if not 0 <= value < 2**48:
        raise ValueError("a size is less than 0 or 2**48 or more")
    return value
