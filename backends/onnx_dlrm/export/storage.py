"""External data of an ONNX file: large tensors in one file beside it, mapped by who loads it."""

from collections.abc import Sequence
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper, numpy_helper

_INLINE_BYTES = 1024
_ALIGNMENT_BYTES = 4096  # a page, so that a tensor can be mapped


class Storage:
    """Write tensors to ``file``, which is called ``name``; small ones stay in the graph."""

    def __init__(self, name: str, file: BinaryIO) -> None:
        self._location = name
        self._file = file

    def tensor(self, name: str, parts: Sequence[npt.NDArray[np.generic]]) -> TensorProto:
        """Return the tensor of ``parts``, one below the other, written part by part."""
        if sum(part.nbytes for part in parts) <= _INLINE_BYTES:
            whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
            return numpy_helper.from_array(whole, name)
        offset = -(-self._file.tell() // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        self._file.seek(offset)
        for part in parts:
            self._file.write(np.ascontiguousarray(part).data)
        entries = {
            "location": self._location,
            "offset": str(offset),
            "length": str(self._file.tell() - offset),
        }
        tensor = TensorProto(
            name=name,
            data_type=helper.np_dtype_to_tensor_dtype(parts[0].dtype),
            dims=[sum(len(part) for part in parts), *parts[0].shape[1:]],
            data_location=TensorProto.EXTERNAL,
        )
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=value)
        return tensor
