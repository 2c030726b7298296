"""The binary tensor extension: tensors after the JSON, little-endian, row-major, without gaps."""

import math
from collections.abc import Sequence

from scheduler.errors import invalid, shown
from scheduler.types import ModelSpec
from transports.codecs.oip_tensors import Tensor, dtype_of, input_infos, tensor_from_raw


class Tail:
    """What follows the JSON; tensors take their bytes in order."""

    def __init__(self, content: memoryview) -> None:
        self._content = content
        self._taken_bytes = 0

    def take(self, name: str, size_bytes: int) -> memoryview:
        """Return the next ``size_bytes``, which are those of ``name``. Raises ServingError."""
        left_bytes = len(self._content) - self._taken_bytes
        if not 0 <= size_bytes <= left_bytes:
            raise invalid(
                f"tensor {shown(name)}: binary_data_size is {size_bytes},"
                f" but {left_bytes} bytes are left of the {len(self._content)} after the JSON"
            )
        start, self._taken_bytes = self._taken_bytes, self._taken_bytes + size_bytes
        return self._content[start : self._taken_bytes]

    def check_empty(self) -> None:
        """Refuse bytes that no tensor took. Raises ServingError."""
        if self._taken_bytes != len(self._content):
            raise invalid(
                f"body has {len(self._content)} bytes after the JSON,"
                f" but the binary_data_size of all inputs add up to {self._taken_bytes}"
            )


def only_input(body: bytes, spec: ModelSpec) -> Tensor:
    """View ``body`` as the one input of the model, whose open size follows from the length.

    Raises ServingError (INVALID_REQUEST).
    """
    infos = input_infos(spec)
    if len(infos) != 1:
        names = ", ".join(info.name for info in infos)
        raise invalid(
            f"a body without JSON is the only input's, but model {spec.name} has {len(infos)}:"
            f" {names}"
        )
    (info,) = infos
    if info.shape.count(-1) > 1:
        raise invalid(f"{info.name}: shape {list(info.shape)} leaves more than one size open")
    step_bytes = math.prod(size for size in info.shape if size != -1)
    step_bytes *= dtype_of(info.datatype).itemsize
    size, rest = divmod(len(body), step_bytes) if step_bytes else (0, len(body))
    if rest:
        raise invalid(f"{info.name}: {len(body)} bytes are no multiple of {step_bytes}")
    shape = [size if entry == -1 else entry for entry in info.shape]
    return tensor_from_raw(info.name, info.datatype, shape, body)


def joined(head: bytes, tensors: Sequence[Tensor]) -> bytes:
    """Return ``head`` and the bytes of ``tensors``."""
    return b"".join([head, *(tensor.array.data for tensor in tensors)])
