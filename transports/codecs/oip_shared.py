"""Tensors in shared memory: what the parameters of the Open Inference Protocol's tensors say.

An input's bytes are copied before anything about them is checked: its client can write to them at
any time. An output's are written once every output is known to have room.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from scheduler.errors import Code, ServingError, invalid, shown
from scheduler.regions import Regions, Window
from scheduler.types import ModelSpec
from transports.codecs import strict_json
from transports.codecs.oip_tensors import BYTES, Tensor, check_raw_size, tensor_from_raw
from transports.codecs.oip_texts import check_text_size

REGION = "shared_memory_region"
SIZE = "shared_memory_byte_size"
OFFSET = "shared_memory_offset"
HOW_TO = "shared memory is off on this server (server.shared_memory)"

Parameters: TypeAlias = Mapping[str, object]


class Place(NamedTuple):
    """Where an output is to go, and by what name and offset the client knows it."""

    region: str
    offset: int
    window: Window

    def parameters(self, size_bytes: int) -> dict[str, str | int]:
        """Return what an answer says of an output of ``size_bytes`` that went there."""
        where: dict[str, str | int] = {REGION: self.region, SIZE: size_bytes}
        return {**where, OFFSET: self.offset} if self.offset else where


Places: TypeAlias = Mapping[str, Place]


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """The regions that requests may name, None for none; their inputs have ``max_bytes`` in all."""

    regions: Regions | None = None
    max_bytes: int = 0

    def place(self, where: str, parameters: Parameters) -> Place:
        """Return what the parameters of ``where`` name.

        Raises ServingError (INVALID_REQUEST, UNSUPPORTED).
        """
        if self.regions is None:
            raise ServingError(Code.UNSUPPORTED, f"{where}: {REGION} is not supported: {HOW_TO}")
        name = parameters[REGION]
        if not isinstance(name, str):
            raise invalid(f"{where}: {REGION} is {strict_json.shown(name)}, expected a string")
        if SIZE not in parameters:
            raise invalid(f"{where}: {SIZE} is missing beside {REGION}")
        size_bytes = _whole(where, SIZE, parameters[SIZE])
        offset = _whole(where, OFFSET, parameters.get(OFFSET, 0))
        try:
            return Place(name, offset, self.regions.window(name, offset, size_bytes))
        except ServingError as error:
            raise invalid(f"{where}: {error.detail}") from error


NONE = SharedMemory()


class SharedInputs:
    """Copies the inputs of one request, as much as it may have."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self._taken_bytes = 0

    def read(
        self, name: str, datatype: str, shape: Sequence[int], parameters: Parameters
    ) -> Tensor:
        """Return the input ``name``; nothing is read that is not as large as its shape says.

        Raises ServingError (INVALID_REQUEST, PAYLOAD_TOO_LARGE, UNSUPPORTED).
        """
        where = f"tensor {shown(name)}"
        window = self._memory.place(where, parameters).window
        self._taken_bytes += window.size_bytes
        if self._taken_bytes > self._memory.max_bytes:
            raise ServingError(
                Code.PAYLOAD_TOO_LARGE,
                f"{where}: the inputs in shared memory have {self._taken_bytes} bytes up to here,"
                f" the limit is {self._memory.max_bytes}",
            )
        check_raw_size(name, datatype, shape, window.size_bytes)
        if datatype == BYTES:
            check_text_size(where, window.size_bytes)
        return tensor_from_raw(name, datatype, shape, window.read())


def check_room(spec: ModelSpec, rows: int, places: Places) -> None:
    """Refuse outputs whose ``places`` are too small before anything is computed for them.

    Raises ServingError (INVALID_REQUEST).
    """
    for output in spec.outputs:
        place = places.get(output.name)
        if place is not None and "*" not in output.shape:
            sizes = [rows if size == "rows" else int(size) for size in output.shape]
            _check_size(output.name, place, math.prod(sizes) * output.dtype.itemsize)


def write_outputs(tensors: list[Tensor], places: Places) -> None:
    """Write those of ``tensors`` that have a place, or none. Raises ServingError."""
    placed = [(tensor, places[tensor.name]) for tensor in tensors if tensor.name in places]
    for tensor, place in placed:
        _check_size(tensor.name, place, tensor.array.nbytes)
        place.window.check()
    for tensor, place in placed:
        if tensor.array.nbytes:
            place.window.write(tensor.array.data)


def _check_size(name: str, place: Place, size_bytes: int) -> None:
    if size_bytes > place.window.size_bytes:
        raise invalid(
            f"output {shown(name)}: {SIZE} is {place.window.size_bytes},"
            f" but it has {size_bytes} bytes"
        )


def _whole(where: str, name: str, value: object) -> int:
    if type(value) is not int or value < 0:  # True is an int, too
        found = strict_json.shown(value)
        raise invalid(f"{where}: {name} is {found}, expected an integer of 0 or more")
    return value
