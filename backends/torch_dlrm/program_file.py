"""Read a DLRM's weights out of a torch.export program (.pt2), without PyTorch.

The names are those of our own exporter's program: ``narsil export --format pt2``. The archive is a
zip whose tensors lie in records of their own, described by one JSON file. Nothing is unpickled.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.torch_dlrm.recognise import NotRecognisedError, checked
from backends.torch_dlrm.weights import Dlrm, Layer, Tables
from backends.torchscript_file.archive import Archive
from scheduler.errors import LoadError

PROGRAM_SUFFIX = ".pt2"
# What our exporter adds about the program, beside PyTorch's own records.
FACTS_FILE = "narsil.json"
_WEIGHTS = "data/weights"
_COMPILED = "data/aotinductor/"
_CONFIG = f"{_WEIGHTS}/model_weights_config.json"
_CONFIGS = (_CONFIG, "data/constants/model_constants_config.json")
# torch._export.serde.schema.ScalarType
_DTYPES = {1: np.uint8, 4: np.int32, 5: np.int64, 7: np.float32}


def is_compiled(path: Path) -> bool:
    """Return whether ``path`` is an AOTInductor package. Raises LoadError for no zip file."""
    if path.suffix != PROGRAM_SUFFIX:
        return False
    return any(name.startswith(_COMPILED) for name in Archive(path).names())


def read_program(path: Path, *, verify: bool) -> tuple[Dlrm, tuple[str, ...]]:
    """Return the weights in the program at ``path``, as views, and the features in wire order.

    Raises NotRecognisedError for a program of another kind, LoadError for a damaged one.
    """
    archive = Archive(path)
    if is_compiled(path):
        raise NotRecognisedError("an AOTInductor package has its weights in machine code")
    if verify:
        archive.verify()
    tensors = _Tensors(archive)
    facts = _facts(archive)
    block, types = tensors.get("block", np.uint8), tensors.get("lookup.types", np.uint8)
    dim, kinds = int(facts["dim"]), set(types.tolist())
    tables = Tables(
        block=block,
        starts=tensors.get("lookup.starts", np.int64),
        types=types,
        rows=np.asarray(facts["table_rows"], np.int64),
        dim=dim,
        largest=tuple(dim if kind in kinds else 0 for kind in (4, 3, 2, 1, 0)),
        pooling=int(facts["pooling"]),
        row_alignment=int(facts["row_alignment"]),
    )
    # Older programs multiply no more vectors than they have.
    vectors = int(facts.get("vectors", len(types) + 1))
    pairs = np.stack(np.divmod(tensors.get("scores.pairs", np.int64), max(vectors, 1)))
    if not 0 <= pairs.min(initial=0) <= pairs.max(initial=0) <= len(types):
        raise NotRecognisedError("it keeps products of vectors that it does not have")
    dlrm = Dlrm(tensors.layers("scores.dense"), tensors.layers("scores.over"), tables, pairs)
    return checked(dlrm), tuple(map(str, facts["features"]))


def refuse_pickles(path: Path) -> None:
    """Refuse a program with weights that PyTorch would unpickle without a restriction.

    Raises LoadError.
    """
    archive = Archive(path)
    for name in _CONFIGS:
        for tensor, entry in _config(archive, name).items():
            if not isinstance(entry, dict) or entry.get("use_pickle") is not False:
                raise LoadError(f"{path}: {tensor!r} is pickled; pickles are not loaded")


def _facts(archive: Archive) -> dict[str, Any]:
    names = [name for name in archive.names() if name.rpartition("/")[2] == FACTS_FILE]
    if len(names) != 1:
        raise NotRecognisedError("it is no program of narsil export")
    facts = json.loads(archive.read(names[0]))
    wanted = {"dim", "pooling", "row_alignment", "table_rows", "features"}
    if not isinstance(facts, dict) or facts.keys() - {"vectors"} != wanted:
        raise NotRecognisedError(f"{FACTS_FILE} has not the keys {sorted(wanted)}")
    return facts


def _config(archive: Archive, name: str) -> dict[str, Any]:
    try:
        config = json.loads(archive.read(name))["config"]
    except (ValueError, KeyError, TypeError) as error:
        raise LoadError(f"{archive.path}: record {name!r} is damaged: {error}") from error
    if not isinstance(config, dict):
        raise LoadError(f"{archive.path}: record {name!r} is damaged: no config")
    return config


class _Tensors:
    """The program's tensors by name, as views of the file."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._entries = _config(archive, _CONFIG)

    def get(self, name: str, dtype: type[Any]) -> npt.NDArray[Any]:
        """Return one tensor, or raise NotRecognisedError."""
        entry = self._entries.get(name)
        if entry is None:
            raise NotRecognisedError(f"it has no {name}")
        try:
            meta = entry["tensor_meta"]
            found = np.dtype(_DTYPES[meta["dtype"]])
            shape = tuple(int(size["as_int"]) for size in meta["sizes"])
            strides = tuple(int(step["as_int"]) for step in meta["strides"])
            offset, record = int(meta["storage_offset"]["as_int"]), str(entry["path_name"])
        except (KeyError, TypeError, ValueError) as error:
            raise NotRecognisedError(f"{name} is described in another way: {error}") from error
        data = self._archive.view(f"{_WEIGHTS}/{record}")
        fits = data.size == math.prod(shape) * found.itemsize and min(shape, default=1) >= 0
        if found != dtype or offset or not fits or strides != _contiguous(shape):
            raise NotRecognisedError(f"{name} is no plain {np.dtype(dtype)} tensor")
        return data.view(found).reshape(shape)

    def layers(self, prefix: str) -> tuple[Layer, ...]:
        """Return ``prefix.weight_N`` (inputs, outputs) and ``prefix.bias_N`` as layers."""
        count = sum(name.startswith(f"{prefix}.weight_") for name in self._entries)
        if not count:
            raise NotRecognisedError(f"{prefix} has no layers")
        return tuple(
            Layer(
                self.get(f"{prefix}.weight_{number}", np.float32).T,
                self.get(f"{prefix}.bias_{number}", np.float32),
            )
            for number in range(count)
        )


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
