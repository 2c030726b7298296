"""A caller's tensors <-> the one message that carries them, on the device that sends it."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from scheduler.errors import ServingError, invalid
from transports.collective.layout import TRAILER, places
from transports.collective.messages import TensorHead

Input: TypeAlias = torch.Tensor | npt.NDArray[np.generic]

_DATATYPES = {
    torch.bool: "BOOL",
    torch.uint8: "UINT8",
    torch.uint16: "UINT16",
    torch.uint32: "UINT32",
    torch.uint64: "UINT64",
    torch.int8: "INT8",
    torch.int16: "INT16",
    torch.int32: "INT32",
    torch.int64: "INT64",
    torch.float16: "FP16",
    torch.float32: "FP32",
    torch.float64: "FP64",
}
_DTYPES = {datatype: dtype for dtype, datatype in _DATATYPES.items()}


def tensor_of(name: str, value: Input) -> torch.Tensor:
    """Return ``value`` as a tensor, which may share its memory. Raises ServingError."""
    if isinstance(value, torch.Tensor):
        if value.dtype not in _DATATYPES:
            raise _unsendable(name, value.dtype)
        return value
    array = np.ascontiguousarray(value, value.dtype.newbyteorder("="))
    try:
        # PyTorch warns of memory that it might write to; nothing here does.
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    except TypeError as error:
        raise _unsendable(name, value.dtype) from error


def heads_of(tensors: Mapping[str, torch.Tensor]) -> tuple[TensorHead, ...]:
    """Return what a request says of ``tensors``."""
    return tuple(
        TensorHead(name, _DATATYPES[tensor.dtype], tuple(tensor.shape))
        for name, tensor in tensors.items()
    )


def packed(
    number: int,
    heads: Sequence[TensorHead],
    tensors: Mapping[str, torch.Tensor],
    device: torch.device,
) -> torch.Tensor:
    """Return the message that carries ``tensors``, which ``heads`` describe, on ``device``."""
    where, size_bytes = places(heads)
    message = torch.empty(size_bytes, dtype=torch.uint8, device=device)
    for head, place in zip(heads, where, strict=True):
        tensor = tensors[head.name]
        message[place].view(tensor.dtype).copy_(tensor.reshape(-1))
    trailer = torch.frombuffer(bytearray(TRAILER.pack(number)), dtype=torch.uint8)
    message[-TRAILER.size :] = trailer
    return message


def unpacked(heads: Sequence[TensorHead], message: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the tensors that ``message`` carries, views of it."""
    where, _ = places(heads)
    return {
        head.name: message[place].view(_DTYPES[head.datatype]).reshape(head.shape)
        for head, place in zip(heads, where, strict=True)
    }


def _unsendable(name: str, dtype: object) -> ServingError:
    return invalid(f"{name}: tensors of {dtype} cannot be sent; send another type")
