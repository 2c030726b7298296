"""Where the tables lie, as every kernel reads it."""

import numpy as np
import numpy.typing as npt

from backends.dlrm.forward.model import Dlrm

INT8, FP16, FP32, INT4 = range(4)
START, STRIDE, KIND, MEAN, PLACE = range(5)
_CODES = {"int8": INT8, "fp16": FP16, "fp32": FP32, "int4": INT4}


def table_layout(dlrm: Dlrm) -> npt.NDArray[np.int64]:
    """Return where each feature's table lies, (features, 5), in wire order.

    The first byte of its table in the storage, the bytes of a row, the kind of its rows, whether
    bags are averaged, and the place of its vector in the interaction (the dense vector has 0).
    """
    place = {table: number for number, table in enumerate(dlrm.interacted, 1)}
    origin = dlrm.storage.ctypes.data
    rows = [
        (
            table.data.ctypes.data - origin,
            table.data.strides[0],
            _CODES[table.kind],
            table.mean,
            place[number],
        )
        for number, table in enumerate(dlrm.tables)
    ]
    return np.asarray(rows, np.int64)
