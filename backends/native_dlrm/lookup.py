"""Read the tables of one FBGEMM lookup module (IntNBitTableBatchedEmbeddingBagsCodegen).

Rows of all tables lie in one tensor of bytes; table t starts at ``weights_physical_offsets[t]`` and
each row is padded to ``row_alignment``. An INT8 or INT4 row starts with its scale and
bias in FP16.
"""

from typing import Any, get_args

import numpy as np

from backends.dlrm.forward.model import QUANTISED, SCALE_BIAS_BYTES, Bytes, Kind, Table, row_bytes
from backends.native_dlrm.errors import UnknownModelError
from backends.torchscript_file.tree import Module, Opaque

_CLASS = "IntNBitTableBatchedEmbeddingBagsCodegen"
_SUM, _MEAN = 0, 1
_FLOAT32_OUTPUT = 0  # SparseType.FP32, as an int
_HOST_STORES = ("weights_host", "weights_dev", "weights_uvm")
# Each makes a lookup mean something else than "this row of this table".
_UNSUPPORTED = ("index_remapping_hash_table", "index_remappings_array", "lxu_cache_weights")


def read_lookup(module: Module, features: tuple[str, ...]) -> list[Table]:
    """Return a table for each of ``features``, as views of the file. Raises UnknownModelError."""
    _check(module)
    specs = _list(module, "embedding_specs")
    offsets = _list(module, "weights_physical_offsets")
    feature_tables = _list(module, "feature_table_map")
    if len(feature_tables) != len(features) or len(offsets) != len(specs):
        raise UnknownModelError(
            f"a lookup of {len(feature_tables)} features is given {len(features)}"
        )
    store = _store(module)
    return [
        _table(module, feature, specs[index], int(offsets[index]), store)
        for feature, index in zip(features, feature_tables, strict=True)
    ]


def _check(module: Module) -> None:
    attributes = module.attributes
    if not module.type_name.endswith(_CLASS):
        raise UnknownModelError(f"ids are looked up by {module.type_name}, not by {_CLASS}")
    for name in _UNSUPPORTED:
        tensor = module.tensor(name)
        if tensor is not None and tensor.size:
            raise UnknownModelError(f"a lookup has {name}: pruned or cached tables are not served")
    if attributes.get("pooling_mode") not in {_SUM, _MEAN}:
        raise UnknownModelError(f"pooling mode {attributes.get('pooling_mode')} is not sum or mean")
    if attributes.get("output_dtype") != _FLOAT32_OUTPUT:
        raise UnknownModelError("a lookup's output is not FP32")
    if attributes.get("reverse_qparam"):
        raise UnknownModelError("scale and bias stand at the end of each row")


def _table(module: Module, feature: str, spec: Any, offset: int, store: Bytes) -> Table:
    _, rows, dim, sparse_type, _ = spec
    kind = _kind(sparse_type)
    scale_bias = module.attributes.get("scale_bias_size_in_bytes")
    if kind in QUANTISED and scale_bias != SCALE_BIAS_BYTES:
        raise UnknownModelError(f"scale and bias take {scale_bias} bytes, not {SCALE_BIAS_BYTES}")
    alignment = module.attributes.get("row_alignment")
    if not isinstance(alignment, int) or alignment < 1:
        raise UnknownModelError(f"row alignment {alignment!r} is no number over 0")
    stride = -(-row_bytes(kind, dim) // alignment) * alignment
    end = offset + rows * stride
    if rows < 1 or dim < 1 or offset < 0 or end > store.size:
        raise UnknownModelError(
            f"the table of {feature!r} ends at byte {end}, but the tables have {store.size} bytes"
        )
    mean = module.attributes["pooling_mode"] == _MEAN
    return Table(feature, kind, dim, store[offset:end].reshape(rows, stride), mean)


def _store(module: Module) -> Bytes:
    """Return the one tensor that holds all rows."""
    tensors = [module.tensor(name) for name in _HOST_STORES]
    filled = [tensor for tensor in tensors if tensor is not None and tensor.size]
    if len(filled) != 1 or filled[0].dtype != np.uint8 or filled[0].ndim != 1:
        raise UnknownModelError(f"a lookup keeps its rows in {len(filled)} places, not 1")
    return filled[0].view(np.uint8)


def _kind(sparse_type: object) -> Kind:
    name = sparse_type.arguments[0] if isinstance(sparse_type, Opaque) else sparse_type
    for kind in get_args(Kind):
        if name == kind:
            known: Kind = kind
            return known
    raise UnknownModelError(f"rows of {name} are not served; known: {', '.join(get_args(Kind))}")


def _list(module: Module, name: str) -> list[Any]:
    value = module.attributes.get(name)
    if not isinstance(value, list):
        raise UnknownModelError(f"a lookup has no {name}")
    return value
