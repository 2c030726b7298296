"""One ONNX Runtime session. Imports ONNX Runtime, so it is imported on load only."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as states

from backends.dlrm.gather import DENSE, IDS
from backends.onnx_dlrm.described import METADATA_KEY
from scheduler.errors import LoadError
from scheduler.types import Array

_ERRORS = 3  # severity: warnings about a graph are its author's, not the operator's
_LENGTHS, _VALUES = f"{IDS}.lengths", f"{IDS}.values"
_INTEGERS: dict[str, np.dtype[Any]] = {
    "tensor(int32)": np.dtype(np.int32),
    "tensor(int64)": np.dtype(np.int64),
}
_OUTPUTS = {"tensor(float)", "tensor(double)", "tensor(float16)", *_INTEGERS}
# Whatever the library raises; it has no common class below Exception.
OnnxErrors = (
    states.EPFail,
    states.EngineError,
    states.Fail,
    states.InvalidArgument,
    states.InvalidGraph,
    states.InvalidProtobuf,
    states.ModelLoaded,
    states.NoModel,
    states.NoSuchFile,
    states.NotImplemented,
    states.RuntimeException,
)


@dataclass(frozen=True, slots=True, eq=False)
class Session:
    """A loaded file: what its three inputs look like, and its outputs' names.

    ``flat_lengths`` tells lengths of one axis from (features, rows).
    """

    session: onnxruntime.InferenceSession
    dense_features: int
    features: int
    flat_lengths: bool
    lengths_dtype: np.dtype[np.generic]
    values_dtype: np.dtype[np.generic]
    outputs: tuple[str, ...]

    @property
    def metadata(self) -> str:
        """What the file says about itself under our key, or nothing."""
        found: str = self.session.get_modelmeta().custom_metadata_map.get(METADATA_KEY, "")
        return found

    def run(self, dense: Array, lengths: Array, values: Array) -> list[Array]:
        """Run on the calling thread, the GIL released; ``lengths`` is (features, rows)."""
        shaped = lengths.reshape(-1) if self.flat_lengths else lengths
        inputs = {
            DENSE: dense,
            _LENGTHS: shaped.astype(self.lengths_dtype, copy=False),
            _VALUES: values.astype(self.values_dtype, copy=False),
        }
        outputs: list[Array] = self.session.run(self.outputs, inputs)
        return outputs


def open_session(path: Path) -> Session:
    """Load the ONNX file at ``path``. Raises LoadError."""
    options = onnxruntime.SessionOptions()
    # Lanes run side by side; a forward is the work of the one thread that asks for it.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = _ERRORS
    try:
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
    except OnnxErrors as error:
        raise LoadError(f"{path} is not loaded by ONNX Runtime: {error}") from error
    return _inspect(path, session)


def _inspect(path: Path, session: onnxruntime.InferenceSession) -> Session:
    found = {argument.name: argument for argument in session.get_inputs()}
    if found.keys() != {DENSE, _LENGTHS, _VALUES}:
        raise LoadError(
            f"{path}: the inputs are {', '.join(sorted(found))}; served are {DENSE}, {_LENGTHS}, "
            f"{_VALUES} (docs/onnx.md): export it with those, or bring the model's checkpoint "
            "(docs/bring-your-own.md)"
        )
    dense, lengths, values = found[DENSE], found[_LENGTHS], found[_VALUES]
    if dense.type != "tensor(float)" or len(dense.shape) != 2 or not _fixed(dense.shape[1]):
        raise _unfit(path, dense, "FP32 (rows, a fixed number)")
    if lengths.type not in _INTEGERS or len(lengths.shape) not in {1, 2}:
        raise _unfit(path, lengths, "int32 or int64 (features, rows), or flat")
    if values.type not in _INTEGERS or len(values.shape) != 1:
        raise _unfit(path, values, "int32 or int64 of one axis")
    for output in session.get_outputs():
        if output.type not in _OUTPUTS:
            raise LoadError(
                f"{path}: output {output.name!r} is {output.type}, no tensor of numbers"
            )
    flat = len(lengths.shape) == 1
    return Session(
        session=session,
        dense_features=dense.shape[1],
        features=0 if flat or not _fixed(lengths.shape[0]) else lengths.shape[0],
        flat_lengths=flat,
        lengths_dtype=_INTEGERS[lengths.type],
        values_dtype=_INTEGERS[values.type],
        outputs=tuple(output.name for output in session.get_outputs()),
    )


def _fixed(size: object) -> bool:
    return isinstance(size, int) and size > 0


def _unfit(path: Path, argument: onnxruntime.NodeArg, wanted: str) -> LoadError:
    return LoadError(
        f"{path}: input {argument.name!r} is {argument.type} {argument.shape}; served is {wanted}"
    )
