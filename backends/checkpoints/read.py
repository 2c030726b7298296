"""Tensors by name out of a checkpoint: safetensors, torch.save or a DCP folder."""

import io
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy.typing as npt

from backends.checkpoints.dcp import read_dcp
from backends.dlrm.kinds import METADATA_FILE, Kind, kind_of
from scheduler.errors import LoadError

Form: TypeAlias = Literal["safetensors", "torch.save", "DCP"]
Array: TypeAlias = npt.NDArray[Any]
# Under which a training script keeps the weights among other things.
_NESTED = ("state_dict", "model_state_dict", "model")
_UNREADABLE = (OSError, RuntimeError, ValueError, EOFError, TypeError, pickle.UnpicklingError)


@dataclass(frozen=True, slots=True, eq=False)
class Tensors:
    """A checkpoint's tensors; ``ordered`` if it keeps the order in which the model has them."""

    form: Form
    arrays: Mapping[str, Array]
    ordered: bool


def read_tensors(path: Path) -> Tensors:
    """Return the tensors in the checkpoint at ``path``; nothing that is pickled in it is run.

    Raises LoadError.
    """
    if path.is_dir():
        if not (path / METADATA_FILE).is_file():
            raise LoadError(f"{path} is no DCP checkpoint: it has no {METADATA_FILE}")
        return Tensors("DCP", read_dcp(path, _load_piece), ordered=False)
    if path.suffix == ".safetensors":
        return Tensors("safetensors", _safetensors(path), ordered=False)
    # On bytes that are no zip, the old format's unpickler raises whatever it stumbles over.
    if path.is_file() and not zipfile.is_zipfile(path):
        raise LoadError(
            f"cannot read weights from {path}: it is neither .safetensors nor written by torch.save"
        )
    if path.is_file() and kind_of(path) is Kind.TORCHSCRIPT:
        raise LoadError(
            f"it is a TorchScript model, not weights to make one of: narsil serve {path} serves "
            f"it, narsil convert {path} DIR writes it as safetensors"
        )
    try:
        loaded = _torch().load(path, map_location="cpu", weights_only=True, mmap=True)
    except _UNREADABLE as error:
        raise LoadError(f"cannot read weights from {path}: {error}") from error
    return Tensors("torch.save", _named(path, loaded), ordered=True)


def _safetensors(path: Path) -> dict[str, Array]:
    from safetensors import SafetensorError  # noqa: PLC0415
    from safetensors.numpy import load_file  # noqa: PLC0415

    try:
        return dict(load_file(path))
    except (*_UNREADABLE, SafetensorError, KeyError) as error:
        raise LoadError(f"cannot read weights from {path}: {error}") from error


def _named(path: Path, loaded: Any) -> dict[str, Array]:
    """Return the tensors of a state dict, itself or within what a training script saved."""
    torch = _torch()
    for key in _NESTED:
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not isinstance(loaded, dict) or not all(map(torch.is_tensor, loaded.values())):
        raise LoadError(f"{path} holds no state dict (names to tensors)")
    return {str(name): _array(path, name, tensor) for name, tensor in loaded.items()}


def _array(path: Path, name: str, tensor: Any) -> Array:
    try:
        array: Array = tensor.detach().numpy()
        stored_bytes = tensor.untyped_storage().nbytes()
    except (TypeError, RuntimeError) as error:  # bfloat16, a quantised or a sparse tensor
        raise LoadError(f"{path}: {name} is {tensor.dtype}: {error}") from error
    if array.nbytes > stored_bytes:  # a few bytes may stand for any number of rows
        raise LoadError(f"{path}: {name} repeats {stored_bytes} bytes to {array.nbytes}")
    return array


def _load_piece(data: io.BytesIO) -> Any:
    return _torch().load(data, map_location="cpu", weights_only=True)


def _torch() -> Any:
    try:
        import torch  # noqa: PLC0415  # the command line need not wait for it
    except ModuleNotFoundError as error:
        raise LoadError(
            f"{error}; reading this needs PyTorch: this project's extra 'cpu' or 'cuda'"
        ) from error
    return torch
