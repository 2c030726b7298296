"""``narsil perf-data``: requests for perf_analyzer's ``--input-data``.

Left to itself perf_analyzer makes one random row and sends it over and over, in every row of every
request: 26 rows of the tables for a whole run, all in the cache, or ids that no table has.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from loadtest.workload import ModelShape, read_shape
from scheduler.types import Array

DENSE, IDS = "float_features", "id_list_features"
SAMPLES = 10_000


def main(argv: Sequence[str]) -> int:
    """Write the file; exit code 1 for a folder that holds no artifact, said on stderr."""
    parser = argparse.ArgumentParser(
        prog="narsil perf-data", description="Write distinct rows for perf_analyzer's --input-data."
    )
    shown = "(default: %(default)s)"
    parser.add_argument("artifact", type=Path, help="artifact folder that is being served")
    parser.add_argument("file", type=Path, help="JSON file to write")
    parser.add_argument("--samples", type=int, default=SAMPLES, help=f"distinct rows {shown}")
    parser.add_argument("--seed", type=int, default=0, help=f"of the rows {shown}")
    arguments = parser.parse_args(argv)
    try:
        shape = read_shape(arguments.artifact)
        document = perf_document(shape, arguments.samples, np.random.default_rng(arguments.seed))
        arguments.file.write_bytes(orjson.dumps(document))
    except (OSError, KeyError, TypeError, ValueError) as error:
        print(f"narsil perf-data: {arguments.artifact}: {error}", file=sys.stderr)
        return 1
    return 0


def perf_document(shape: ModelShape, samples: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return ``samples`` rows; perf_analyzer takes one after another to fill its batches."""
    dense = rng.standard_normal((samples, shape.dense_features), np.float32)
    ids = popular_ids(shape.table_rows, samples, rng)
    rows = zip(dense.tolist(), ids.tolist(), strict=True)
    return {
        "data": [{DENSE: _tensor(numbers), IDS: _tensor(bags)} for numbers, bags in rows],
    }


def popular_ids(table_rows: Sequence[int], samples: int, rng: np.random.Generator) -> Array:
    """Return int64 ids, samples x tables, by Zipf's law: id k is asked for about 1 / (k + 1)."""
    # The logarithm of k + 1 is uniform, to below that of the table's rows.
    limits = np.array(table_rows, np.float64)
    drawn: Array = limits ** rng.random((samples, len(table_rows)))
    return drawn.astype(np.int64) - 1


def _tensor(content: list[float] | list[int]) -> dict[str, Any]:
    return {"content": content, "shape": [len(content)]}
