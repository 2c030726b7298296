"""Find the weights of an artifact in its model file, without PyTorch.

Where each tensor stands is known by TorchRec's names, not proven by the file's code: what is
written from them is compared with the artifact's own golden scores before it is kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.dlrm.manifest import MODEL_FILE, Manifest
from backends.torchscript_file.tree import Module, Opaque, TorchScriptFile, modules
from scheduler.errors import LoadError

Floats = npt.NDArray[np.float32]
_LOOKUP = "IntNBitTableBatchedEmbeddingBagsCodegen"
_SCALE_BIAS_BYTES = 4  # an INT8 or INT4 row starts with its scale and bias in FP16
_BITS = {"int8": 8, "int4": 4, "fp16": 16, "fp32": 32}
_FLOATS: Mapping[str, type[Any]] = {"fp16": np.float16, "fp32": np.float32}


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """One table: ``value = scale * code + bias``, or the values themselves.

    ``codes`` (rows, dim) views the file: uint8 with ``scale_bias``, (rows, 2) FP16; FP16 or FP32
    without. INT4 codes are a copy, one a byte.
    """

    codes: npt.NDArray[Any]
    scale_bias: npt.NDArray[np.float16] | None


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """``weight`` is (outputs, inputs), ``bias`` (outputs,)."""

    weight: Floats
    bias: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """Everything a DLRM of TorchRec learns; ``tables`` in wire order.

    A ReLU follows every layer but the last of ``over``; ``sigmoid`` says whether that one's output
    is turned into a probability.
    """

    tables: tuple[Table, ...]
    dense: tuple[Linear, ...]
    over: tuple[Linear, ...]
    sigmoid: bool


def read_weights(file: TorchScriptFile, manifest: Manifest) -> Weights:
    """Return the weights of the artifact whose model file is ``file``. Raises LoadError."""
    found: dict[str, Table] = {}
    try:
        for _, module in modules(file.root):
            if module.type_name.endswith(_LOOKUP):
                found |= _lookup(module)
    except (KeyError, TypeError, ValueError, StopIteration) as error:
        raise LoadError(
            f"{MODEL_FILE}: a lookup is not laid out as TorchRec's: {error!r}"
        ) from error
    missing = [table.feature for table in manifest.tables if table.feature not in found]
    if missing:
        raise LoadError(f"{MODEL_FILE} has no table of {', '.join(missing)}")
    if len({(table.codes.dtype, table.scale_bias is None) for table in found.values()}) != 1:
        raise LoadError(f"{MODEL_FILE} has tables of several kinds; ONNX files hold one")
    layers = dict(_layers(file))
    return Weights(
        tables=tuple(found[table.feature] for table in manifest.tables),
        dense=_arch(layers, "dense_arch"),
        over=_arch(layers, "over_arch"),
        sigmoid=any("torch.sigmoid(" in text for text in file.code.values()),
    )


def _lookup(module: Module) -> dict[str, Table]:
    given: dict[str, Any] = dict(module.attributes)
    if given.get("scale_bias_size_in_bytes") != _SCALE_BIAS_BYTES or given.get("pooling_mode"):
        raise LoadError("only tables pooled by their sum can be written as ONNX")
    stores = [given.get(name) for name in ("weights_host", "weights_dev", "weights_uvm")]
    store = next(each for each in stores if isinstance(each, np.ndarray) and each.size)
    tables: dict[str, Table] = {}
    entries = zip(given["embedding_specs"], given["weights_physical_offsets"],
                  given["feature_names_per_table"], strict=True)  # fmt: skip
    for (_, rows, dim, kind, _), offset, features in entries:
        name = kind.arguments[0] if isinstance(kind, Opaque) and kind.arguments else kind
        if name not in _BITS:
            raise LoadError(f"the table of {features[0]!r} is {name}, not {', '.join(_BITS)}")
        size = dim * _BITS[name] // 8 + (0 if name in _FLOATS else _SCALE_BIAS_BYTES)
        alignment = given["row_alignment"]
        stride = -(-size // alignment) * alignment
        data = store[offset : offset + rows * stride].reshape(rows, stride)[:, :size]
        tables |= dict.fromkeys(features, _table(data, name))
    return tables


def _table(data: npt.NDArray[np.uint8], kind: str) -> Table:
    """Return the table whose stored rows, (rows, bytes of a row), are ``data``."""
    if kind in _FLOATS:
        return Table(np.ascontiguousarray(data).view(_FLOATS[kind]), None)
    scale_bias = np.ascontiguousarray(data[:, :_SCALE_BIAS_BYTES]).view(np.float16)
    codes = data[:, _SCALE_BIAS_BYTES:]
    if kind == "int4":
        # Two codes a byte, the first one in the low bits.
        codes = np.stack([codes & 15, codes >> 4], axis=2).reshape(len(codes), -1)
    return Table(codes, scale_bias)


def _layers(file: TorchScriptFile) -> dict[str, Linear]:
    """Return every linear layer by its path, in the file's order."""
    found = {}
    for path, module in modules(file.root):
        weight, bias = module.tensor("weight"), module.tensor("bias")
        if weight is not None and bias is not None and weight.ndim == 2:
            found[path] = Linear(weight.astype(np.float32), bias.astype(np.float32))
    return found


def _arch(layers: dict[str, Linear], name: str) -> tuple[Linear, ...]:
    chosen = tuple(layer for path, layer in layers.items() if f".{name}." in f".{path}")
    if not chosen:
        raise LoadError(f"{MODEL_FILE} has no linear layers in {name}")
    return chosen
