"""Seeded requests for one model, serialised before the run so that it measures the server."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import orjson

from scheduler.types import Array
from transports.codecs.predictor_client import encode_request

Encoding = Literal["json", "protobuf"]


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a request must look like: dense features, and each id feature's table rows."""

    dense_features: int
    features: tuple[str, ...]
    table_rows: tuple[int, ...]


def read_shape(artifact: Path) -> ModelShape:
    """Read the shape from the manifest in an artifact folder. Raises OSError or KeyError."""
    manifest = json.loads((artifact / "manifest.json").read_text(encoding="utf-8"))
    tables = manifest["tables"]
    return ModelShape(
        dense_features=len(manifest["dense_names"]),
        features=tuple(table["feature"] for table in tables),
        table_rows=tuple(table["rows"] for table in tables),
    )


def make_bodies(
    shape: ModelShape, rows: int, count: int, seed: int, encoding: Encoding
) -> list[bytes]:
    """Return ``count`` distinct requests of ``rows`` rows, one uniform id a feature and row."""
    rng = np.random.default_rng(seed)
    return [_encode(shape, _draw(shape, rows, rng), encoding) for _ in range(count)]


def _draw(shape: ModelShape, rows: int, rng: np.random.Generator) -> tuple[Array, Array]:
    dense = rng.standard_normal((rows, shape.dense_features), np.float32)
    limits = np.array(shape.table_rows, np.int64)[:, None]
    ids = (rng.random((len(shape.features), rows)) * limits).astype(np.int32)
    return dense, ids


def _encode(shape: ModelShape, drawn: tuple[Array, Array], encoding: Encoding) -> bytes:
    dense, ids = drawn
    if encoding == "protobuf":
        inputs = {
            "float_features": dense,
            "id_list_features.lengths": np.ones(ids.shape, np.int32),
            "id_list_features.values": ids.ravel(),
        }
        return encode_request(len(dense), inputs)
    bags = {name: ids[number][:, None] for number, name in enumerate(shape.features)}
    return orjson.dumps(
        {"float_features": dense, "id_list_features": {k: v.tolist() for k, v in bags.items()}},
        option=orjson.OPT_SERIALIZE_NUMPY,
    )
