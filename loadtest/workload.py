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
DENSE, LENGTHS, VALUES = "float_features", "id_list_features.lengths", "id_list_features.values"


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
    return [_encode(shape, draw(shape, rows, rng), encoding) for _ in range(count)]


def draw(shape: ModelShape, rows: int, rng: np.random.Generator) -> dict[str, Array]:
    """Return the tensors of one random request, int32 ids, one a feature and row."""
    limits = np.array(shape.table_rows, np.int64)[:, None]
    ids = (rng.random((len(shape.features), rows)) * limits).astype(np.int32)
    return {
        DENSE: rng.standard_normal((rows, shape.dense_features), np.float32),
        LENGTHS: np.ones(ids.shape, np.int32),
        VALUES: ids.ravel(),
    }


def _encode(shape: ModelShape, inputs: dict[str, Array], encoding: Encoding) -> bytes:
    dense = inputs[DENSE]
    if encoding == "protobuf":
        return encode_request(len(dense), inputs)
    bags = inputs[VALUES].reshape(len(shape.features), len(dense), 1)
    ids = dict(zip(shape.features, bags.tolist(), strict=True))
    return orjson.dumps(
        {"float_features": dense, "id_list_features": ids}, option=orjson.OPT_SERIALIZE_NUMPY
    )
