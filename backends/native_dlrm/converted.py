"""A converted model: ``model.safetensors`` and a manifest, which any language can read.

Tensors: ``tables.FEATURE`` (rows, bytes of a row) uint8, as FBGEMM stores rows; ``dense.N.weight``,
``dense.N.bias``, ``over.N.weight``, ``over.N.bias`` FP32.
"""

import dataclasses
import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.dlrm.forward.model import Bytes, Dlrm, Kind, Linear, Table
from backends.dlrm.kinds import TENSORS_FILE
from backends.dlrm.manifest import MANIFEST_FILE, NATIVE_KIND, file_sha256
from backends.dlrm.typed import typed
from backends.torchscript_file.archive import bytes_of
from scheduler.errors import LoadError

KIND, FORMAT = NATIVE_KIND, 1
_LENGTH_BYTES = 8
_MOST_DIM = 1 << 20
_DTYPES: dict[str, np.dtype[Any]] = {"U8": np.dtype(np.uint8), "F32": np.dtype(np.float32)}
Tensors = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class TableEntry:
    """One table: its tensor is ``tables.FEATURE``."""

    feature: str
    rows: int
    dim: int
    kind: Kind
    mean: bool
    ids: str = "reject"
    vocabulary: str = ""


@dataclass(frozen=True, slots=True)
class ConvertedManifest:
    """Describe a converted model; ``tables`` in wire order, ``interacted`` as in ``Dlrm``.

    ``dense_relu`` and ``over_relu`` say which layers are followed by a ReLU.
    """

    name: str
    version: str
    tables: tuple[TableEntry, ...]
    interacted: tuple[int, ...]
    dense_names: tuple[str, ...]
    dense_relu: tuple[bool, ...]
    over_relu: tuple[bool, ...]
    sigmoid: bool
    output: str
    weights: str
    sha256: str
    kind: str = KIND
    format: int = FORMAT


def write_converted(folder: Path, manifest: ConvertedManifest, dlrm: Dlrm) -> ConvertedManifest:
    """Write ``dlrm`` into ``folder``; return the manifest with the file's checksum."""
    # Only what is converted needs the library that writes the format.
    from safetensors.numpy import save_file  # noqa: PLC0415

    tensors: Tensors = {f"tables.{table.feature}": table.data for table in dlrm.tables}
    for part, layers in (("dense", dlrm.dense), ("over", dlrm.over)):
        for number, layer in enumerate(layers):
            tensors[f"{part}.{number}.weight"] = layer.weight
            tensors[f"{part}.{number}.bias"] = layer.bias
    save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()},
              folder / TENSORS_FILE)  # fmt: skip
    whole = dataclasses.replace(manifest, sha256=file_sha256(folder / TENSORS_FILE))
    text = json.dumps(dataclasses.asdict(whole), indent=2)
    (folder / MANIFEST_FILE).write_text(text + "\n", encoding="utf-8")
    # The library writes for the owner alone, whatever the umask says.
    shutil.copymode(folder / MANIFEST_FILE, folder / TENSORS_FILE)
    return whole


def read_converted(
    folder: Path, *, verify: bool, copy: bool = False
) -> tuple[ConvertedManifest, Dlrm]:
    """Map the model of ``folder``, or ``copy`` it into memory; ``verify`` compares the checksum.

    Raises LoadError.
    """
    manifest = _read_manifest(folder / MANIFEST_FILE)
    path = folder / TENSORS_FILE
    storage, tensors = map_safetensors(path, manifest.sha256 if verify else None, copy=copy)
    used = {f"tables.{table.feature}" for table in manifest.tables}
    dlrm = Dlrm(
        tables=tuple(_table(path, entry, tensors) for entry in manifest.tables),
        interacted=manifest.interacted,
        dense=_layers(path, "dense", manifest.dense_relu, tensors, used),
        over=_layers(path, "over", manifest.over_relu, tensors, used),
        sigmoid=manifest.sigmoid,
        output=manifest.output,
        storage=storage,
    )
    if tensors.keys() != used:
        extra = ", ".join(sorted(tensors.keys() - used)[:5])
        raise LoadError(f"{path} has tensors that the manifest does not know: {extra}")
    return manifest, dlrm


def _read_manifest(path: Path) -> ConvertedManifest:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return _parse(document)
    except RecursionError as error:
        raise LoadError(f"{path} is nested too deeply") from error
    except (OSError, ValueError, TypeError) as error:
        raise LoadError(f"{path} is not a manifest of this version: {error}") from error


def _parse(document: object) -> ConvertedManifest:
    """Return the manifest in ``document``. Raises ValueError or TypeError naming the field."""
    if isinstance(document, dict) and "kind" not in document and "score_std" in document:
        raise ValueError("it is that of a TorchScript artifact")
    kind, number = (
        (document.get("kind"), document.get("format")) if isinstance(document, dict) else ("", "")
    )
    if kind != KIND or number != FORMAT:
        raise ValueError(
            f"kind {kind!r:.40}, format {number!r:.40}; this version reads {KIND!r}, {FORMAT}"
        )
    manifest = typed(ConvertedManifest, document)
    _check_values(manifest)
    return manifest


def _check_values(manifest: ConvertedManifest) -> None:
    features = [table.feature for table in manifest.tables]
    if sorted(manifest.interacted) != list(range(len(features))) or not features:
        raise ValueError("interacted is no order of the tables")
    if len(set(features)) != len(features):
        raise ValueError("two tables have the same feature")
    for name in (manifest.name, manifest.version, manifest.output, *features):
        if not name:
            raise ValueError("a name, version, output or feature is empty")
    for at, table in enumerate(manifest.tables):
        if not 0 < table.dim < _MOST_DIM:
            raise ValueError(f"tables[{at}].dim must be 1 to {_MOST_DIM - 1}, not {table.dim}")


def map_safetensors(
    path: Path, sha256: str | None = None, *, copy: bool = False
) -> tuple[Bytes, Tensors]:
    """Map a safetensors file, or ``copy`` it into memory; return its bytes and views of them.

    Raises LoadError, also for another hash than ``sha256``, if that is given.
    """
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415

    try:
        with path.open("rb") as file:
            storage = bytes_of(file.fileno(), copy=copy)
            found = None if sha256 is None else hashlib.sha256(storage.data).hexdigest()
            if found != sha256:
                raise LoadError(
                    f"{path} has SHA-256 {found}, the manifest says {sha256}: the file is damaged "
                    "or was replaced; convert it again"
                )
            # The library checks that the header is sound and the tensors fill the file exactly.
            with safe_open(path, "numpy") as checked:
                checked.keys()
            if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                raise LoadError(f"{path} was replaced while it was read; load it again")
    except (OSError, ValueError, SafetensorError) as error:
        raise LoadError(f"{path} is no sound safetensors file: {error}") from error
    start = _LENGTH_BYTES + int.from_bytes(storage[:_LENGTH_BYTES].tobytes(), "little")
    header = json.loads(storage[_LENGTH_BYTES:start].tobytes())
    tensors: Tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype = _DTYPES.get(entry["dtype"])
        if dtype is None:
            raise LoadError(f"{path}: tensor {name!r} is {entry['dtype']}, not U8 or F32")
        first, last = (start + offset for offset in entry["data_offsets"])
        tensors[name] = storage[first:last].view(dtype).reshape(entry["shape"])
        tensors[name].flags.writeable = False
    return storage, tensors


def _table(path: Path, entry: TableEntry, tensors: Tensors) -> Table:
    data = _tensor(path, f"tables.{entry.feature}", tensors, np.dtype(np.uint8), 2)
    if len(data) != entry.rows:
        raise LoadError(
            f"{path}: the table of {entry.feature!r} has {len(data)} rows, "
            f"the manifest says {entry.rows}"
        )
    return Table(entry.feature, entry.kind, entry.dim, data, entry.mean)


def _layers(
    path: Path, part: str, relu: tuple[bool, ...], tensors: Tensors, used: set[str]
) -> tuple[Linear, ...]:
    if not relu:
        raise LoadError(f"{path}: the manifest has no {part} layers")
    layers = []
    for number, followed in enumerate(relu):
        weight, bias = f"{part}.{number}.weight", f"{part}.{number}.bias"
        floats = np.dtype(np.float32)
        layers.append(
            Linear(
                _tensor(path, weight, tensors, floats, 2),
                _tensor(path, bias, tensors, floats, 1),
                followed,
            )
        )
        used |= {weight, bias}
    return tuple(layers)


def _tensor(
    path: Path, name: str, tensors: Tensors, dtype: np.dtype[Any], axes: int
) -> npt.NDArray[Any]:
    tensor = tensors.get(name)
    if tensor is None:
        raise LoadError(f"{path} lacks {name!r}, which the manifest names")
    if tensor.dtype != dtype or tensor.ndim != axes:
        raise LoadError(f"{path}: {name!r} is {tensor.dtype} of {tensor.ndim} axes")
    return tensor
