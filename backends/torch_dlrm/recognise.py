"""Find a DLRM's weights in the tree of a TorchScript file, or say why it is none that we know.

The names are those of ``torchrec.models.dlrm.DLRM`` quantised, sharded for one device and packaged.
They only say where to look: what the weights then compute is compared with the file's own scores.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.torch_dlrm.weights import BITS, Dlrm, Layer, Tables, check_bounds, check_finite
from backends.torchscript_file.tree import Module, modules

_LOOKUP = "IntNBitTableBatchedEmbeddingBagsCodegen"
_FP32 = 0
# Where fbgemm's EmbeddingLocation says the tables are: in the device's memory, in the host's.
_BLOCKS = {0: "weights_dev", 3: "weights_host"}


class NotRecognisedError(Exception):
    """Say in which way a model is no DLRM of the family that the lean plan computes."""


def recognise(root: Module) -> Dlrm:
    """Return the weights of the DLRM below ``root``.

    Raises NotRecognisedError for another model, LoadError for weights that are damaged.
    """
    dense = _layers(root, "dense_arch")
    over = _layers(root, "over_arch")
    _check_nothing_else(root, len(dense) + len(over))
    tables = _tables(_only(root, _LOOKUP))
    return checked(Dlrm(dense, over, tables, _pairs(root, tables.features + 1)))


def checked(dlrm: Dlrm) -> Dlrm:
    """Return ``dlrm`` if its sizes meet and its weights are whole; raises as ``recognise`` does."""
    _check_sizes(dlrm)
    check_bounds(dlrm.tables)
    check_finite(dlrm)
    return dlrm


def _only(root: Module, kind: str) -> Module:
    found = [module for _, module in modules(root) if module.type_name.endswith(kind)]
    if len(found) != 1:
        raise NotRecognisedError(f"it has {len(found)} table-batched lookups, not one")
    return found[0]


def _layers(root: Module, part: str) -> tuple[Layer, ...]:
    """Return the dense layers below the one module called ``part``, in the order of their names."""
    places = [module for path, module in modules(root) if path.rpartition(".")[2] == part]
    if len(places) != 1:
        raise NotRecognisedError(f"it has {len(places)} modules called {part}, not one")
    layers = [layer for path, module in _sorted(places[0]) if (layer := _layer(path, module))]
    if not layers:
        raise NotRecognisedError(f"{part} has no dense layers")
    return tuple(layers)


def _sorted(root: Module) -> list[tuple[str, Module]]:
    def key(item: tuple[str, Module]) -> list[tuple[int, str]]:
        # "10" comes after "9".
        return [(int(part), "") if part.isdigit() else (-1, part) for part in item[0].split(".")]

    return sorted(modules(root), key=key)


def _layer(path: str, module: Module) -> Layer | None:
    weight, bias = module.attributes.get("weight"), module.attributes.get("bias")
    if weight is None:
        return None
    if not isinstance(weight, np.ndarray) or not isinstance(bias, np.ndarray):
        raise NotRecognisedError(f"{path} has no plain weight and bias")
    if weight.dtype != np.float32 or bias.dtype != np.float32:
        raise NotRecognisedError(f"{path} is {weight.dtype} and {bias.dtype}, not float32")
    if weight.ndim != 2 or bias.shape != weight.shape[:1]:
        raise NotRecognisedError(f"{path} has a weight {weight.shape} and a bias {bias.shape}")
    return Layer(weight, bias)


def _check_nothing_else(root: Module, used: int) -> None:
    weighted = sum("weight" in module.attributes for _, module in modules(root))
    if weighted != used:
        raise NotRecognisedError(f"it has {weighted - used} layers outside dense and over arch")


def _tables(lookup: Module) -> Tables:
    if any(_array(lookup, name, None).size for name in _remappings(lookup)):
        raise NotRecognisedError("its tables are pruned: ids are remapped before the lookup")
    types = _array(lookup, "weights_tys", np.uint8)
    if not set(types.tolist()) <= BITS.keys():
        raise NotRecognisedError(f"its tables are of types {sorted(set(types.tolist()))}")
    places = set(_array(lookup, "weights_placements", np.int32).tolist())
    if len(places) != 1 or not places <= _BLOCKS.keys():
        raise NotRecognisedError("its tables are not all in host memory, nor all in a GPU's")
    if _number(lookup, "output_dtype") != _FP32:
        raise NotRecognisedError("its lookup gives no float32")
    total = _number(lookup, "total_D")
    dim, odd = divmod(total, max(1, types.size))
    ends = np.arange(types.size + 1) * dim
    if odd or not np.array_equal(_array(lookup, "D_offsets", np.int32), ends):
        raise NotRecognisedError("its tables differ in width")
    largest = ("int2", "int4", "int8", "float16", "float32")
    return Tables(
        block=_array(lookup, _BLOCKS[places.pop()], np.uint8),
        starts=_array(lookup, "weights_offsets", np.int64),
        types=types,
        rows=_array(lookup, "rows_per_table", np.int64),
        dim=dim,
        largest=tuple(_number(lookup, f"max_{name}_D") for name in largest),
        pooling=_number(lookup, "pooling_mode"),
        row_alignment=max(1, _number(lookup, "row_alignment")),
    )


def _remappings(lookup: Module) -> Iterator[str]:
    return (name for name in lookup.attributes if name.startswith("index_remapping") and
            isinstance(lookup.attributes[name], np.ndarray) and "offsets" not in name)  # fmt: skip


def _array(module: Module, name: str, dtype: type[Any] | None) -> npt.NDArray[Any]:
    found = module.attributes.get(name)
    if not isinstance(found, np.ndarray) or (dtype is not None and found.dtype != dtype):
        raise NotRecognisedError(f"its lookup has no {name}")
    return found


def _number(module: Module, name: str) -> int:
    found = module.attributes.get(name)
    if not isinstance(found, int):
        raise NotRecognisedError(f"its lookup has no {name}")
    return found


def _pairs(root: Module, vectors: int) -> npt.NDArray[np.int64]:
    """Return the pairs whose products are kept: the file's constants, or the usual triangle."""
    found = [root.attributes.get(f"_tensor_constant{number}") for number in range(2)]
    usual = np.stack(np.triu_indices(vectors, 1)).astype(np.int64)
    arrays = [array for array in found if isinstance(array, np.ndarray)]
    if not arrays:
        return usual
    if len(arrays) != 2 or arrays[0].shape != arrays[1].shape or arrays[0].ndim != 1:
        raise NotRecognisedError("its constants are no list of pairs")
    pairs = np.stack(arrays).astype(np.int64)
    if pairs.size and not 0 <= pairs.min() <= pairs.max() < vectors:
        raise NotRecognisedError("its constants name vectors that it does not have")
    return pairs


def _check_sizes(dlrm: Dlrm) -> None:
    """Refuse layers whose sizes do not meet."""
    widths = [
        (dlrm.dense[-1].bias.size, dlrm.tables.dim, "the dense vector and the tables"),
        (dlrm.over[0].weight.shape[1], dlrm.tables.dim + dlrm.pairs.shape[1], "the interaction"),
        (dlrm.over[-1].bias.size, 1, "the score"),
    ]
    for part in (dlrm.dense, dlrm.over):
        for before, after in pairwise(part):
            widths.append((before.bias.size, after.weight.shape[1], "dense layers"))
    for left, right, what in widths:
        if left != right:
            raise NotRecognisedError(f"{what}: widths {left} and {right} do not meet")
