"""A folder of torch.distributed.checkpoint (DCP): tensors in pieces, and a pickled index of them.

Trust boundary: PyTorch's own reader unpickles the index without a restriction. Here every name in
it that is known stands for a record that does nothing, and any other is an error; the pieces are
read with ``weights_only``.
"""

import io
import math
import pickle
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.dlrm.kinds import METADATA_FILE
from scheduler.errors import LoadError

# That of a model of a thousand tables in a thousand pieces each is a tenth of it.
_MOST_METADATA_BYTES = 1 << 30
_MODULES = (
    "torch.distributed.checkpoint.metadata",
    "torch.distributed.checkpoint.filesystem",
    "torch.distributed.checkpoint.planner",
)
_DTYPE = "torch"
Floats = npt.NDArray[np.float32]


class _Record:
    """What stands for an object of a known class: what it was made of, and nothing it does."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def get(self, name: str) -> Any:
        """Return one attribute. Raises ValueError."""
        state = getattr(self, "state", None)
        if not isinstance(state, dict) or name not in state:
            raise ValueError(f"a record has no {name}")
        return state[name]


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return what a name stands for, without importing it."""
        if (module, name) == (_DTYPE, "Size"):
            return tuple
        if module == _DTYPE and name.isidentifier():
            return f"{module}.{name}"
        # Layouts and the folder's own path say nothing that is used.
        known = (module, name) in {("torch.serialization", "_get_layout"), ("pathlib", "PosixPath")}
        if known or (module in _MODULES and name.lstrip("_").isidentifier()):
            return _Record
        raise pickle.UnpicklingError(f"it names {module}.{name}, which is not run")


def read_dcp(folder: Path, load: Callable[[io.BytesIO], Any]) -> dict[str, Floats]:
    """Return the FP32 tensors of ``folder``, whole; ``load`` reads one piece.

    Raises LoadError.
    """
    try:
        index = _index(folder)
        entries, pieces = index.get("state_dict_metadata"), index.get("storage_data")
        shapes = {name: entry for name, entry in entries.items() if _is_float(entry)}
        sizes = {name: _sizes(entry.get("size")) for name, entry in shapes.items()}
        _check_present(folder, sizes, pieces)
        tensors = {name: np.full(size, np.nan, np.float32) for name, size in sizes.items()}
        for name, start, data in _pieces(folder, pieces, tensors.keys(), load):
            _place(tensors[name], name, start, data)
    except (OSError, EOFError, pickle.UnpicklingError, ValueError, TypeError,
            AttributeError, RuntimeError, IndexError, KeyError) as error:  # fmt: skip
        raise LoadError(f"{folder} is no sound DCP checkpoint: {error}") from error
    return tensors


def _index(folder: Path) -> _Record:
    path = folder / METADATA_FILE
    if path.stat().st_size > _MOST_METADATA_BYTES:
        raise ValueError(f"{METADATA_FILE} is above {_MOST_METADATA_BYTES} bytes")
    with path.open("rb") as file:
        index = _Unpickler(file).load()
    if not isinstance(index, _Record):
        raise TypeError(f"{METADATA_FILE} holds a {type(index).__name__}")
    return index


def _check_present(folder: Path, sizes: Mapping[str, tuple[int, ...]], pieces: Any) -> None:
    """Refuse tensors larger than what the folder has of them, before there is memory for them."""
    present = dict.fromkeys(sizes, 0)
    for key, place in pieces.items():
        name, length = key.get("fqn"), place.get("length")
        if name in present:
            file_bytes = (folder / _beside(place.get("relative_path"), name)).stat().st_size
            present[name] += min(length, file_bytes)
    for name, size in sizes.items():
        if math.prod(size) * np.dtype(np.float32).itemsize > present[name]:
            raise ValueError(f"{name} has sizes {size}, its pieces {present[name]} bytes")


def _beside(relative: Any, name: str) -> str:
    if not isinstance(relative, str) or Path(relative).name != relative:
        raise ValueError(f"{name} lies outside of the folder")
    return relative


def _is_float(entry: Any) -> bool:
    if not isinstance(entry, _Record):
        raise TypeError("an entry is no record")
    state = getattr(entry, "state", None)
    if not isinstance(state, dict) or "properties" not in state:
        return False  # no tensor
    properties = state["properties"]
    dtype = getattr(properties, "state", (None,))
    return isinstance(dtype, tuple) and dtype[:1] == ("torch.float32",)


def _sizes(sizes: Any) -> tuple[int, ...]:
    if not isinstance(sizes, tuple) or not all(type(size) is int and size >= 0 for size in sizes):
        raise TypeError("sizes are no numbers")
    if math.prod(sizes) > 1 << 40:
        raise ValueError(f"a tensor of sizes {sizes} is larger than any memory")
    return sizes


def _pieces(
    folder: Path, pieces: Any, wanted: Any, load: Callable[[io.BytesIO], Any]
) -> Iterator[tuple[str, tuple[int, ...], Floats]]:
    """Yield each piece of the tensors ``wanted``: the tensor's name, where it begins, its data."""
    for key, place in pieces.items():
        name = key.get("fqn")
        if name not in wanted:
            continue
        with (folder / _beside(place.get("relative_path"), name)).open("rb") as file:
            file.seek(place.get("offset"))
            data = file.read(place.get("length"))
        tensor = load(io.BytesIO(data))
        yield name, _sizes(key.get("offset")), tensor.numpy()


def _place(whole: Floats, name: str, start: tuple[int, ...], data: Floats) -> None:
    where = tuple(slice(first, first + size) for first, size in zip(start, data.shape, strict=True))
    if whole[where].shape != data.shape or data.dtype != whole.dtype:
        raise ValueError(f"a piece of {name} does not fit it")
    whole[where] = data
