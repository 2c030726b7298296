"""``narsil convert``: a DLRM as safetensors and a manifest, from TorchScript or FP32 weights."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from backends.checkpoints.read import read_tensors
from backends.checkpoints.weights import MEAN_HELP, Layer, Weights, averaged, find_weights
from backends.dlrm.forward.model import Dlrm, Linear, Table
from backends.dlrm.kinds import Kind, kind_of
from backends.native_dlrm.convert import convert, write_source
from backends.native_dlrm.converted import ConvertedManifest
from backends.native_dlrm.source import Source
from scheduler.errors import LoadError

# The name of a task in TorchRec, and of our exporter's only output.
_OUTPUT = "default"


def main(argv: Sequence[str]) -> int:
    """Run ``narsil convert`` with ``argv``; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="narsil convert",
        description="Write a DLRM as safetensors and a manifest, for the backend native_dlrm:"
        " a TorchScript model as it is, FP32 weights of a checkpoint in FP32.",
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="artifact folder, model.pt, state dict (.pt, .safetensors) or DCP folder",
    )
    parser.add_argument("out", metavar="DIR", type=Path, help="folder to write; it must not exist")
    parser.add_argument("--name", default="", help="model name; default: the one it has")
    parser.add_argument(
        "--features",
        metavar="NAMES",
        default="",
        help="of a checkpoint: its tables' features, in order; default: the file's",
    )
    parser.add_argument("--mean", metavar="NAMES", default="", help=MEAN_HELP)
    arguments = parser.parse_args(argv)
    features = tuple(name for name in arguments.features.split(",") if name)
    try:
        if _is_checkpoint(Path(arguments.model)):
            convert_checkpoint(
                Path(arguments.model), arguments.out, arguments.name, features, arguments.mean
            )
        elif features or arguments.mean:
            flag = "--features" if features else "--mean"
            raise LoadError(f"{flag}: {arguments.model} says so itself; it goes with a checkpoint")
        else:
            convert(arguments.model, arguments.out, arguments.name)
    except (LoadError, OSError) as error:
        sys.stderr.write(f"narsil convert: {error}\n")
        return 1
    sys.stderr.write(f"wrote {arguments.out}\n")
    return 0


def _is_checkpoint(path: Path) -> bool:
    try:
        return kind_of(path) in {Kind.STATE_DICT, Kind.DCP}
    except LoadError:
        return False  # who reads a model has better words for what is wrong


def convert_checkpoint(
    checkpoint: Path, out: Path, name: str = "", features: Sequence[str] = (), mean: str = ""
) -> ConvertedManifest:
    """Write the FP32 weights of ``checkpoint`` into the folder ``out``, whole or not at all.

    ``mean`` has the features whose bags are averaged, with commas.
    Raises LoadError, or OSError where nothing can be written.
    """
    try:
        weights = find_weights(read_tensors(checkpoint))
        named = weights.features(features)
        dlrm = dlrm_of(weights, named, averaged(named, mean))
    except LoadError as error:
        raise LoadError(f"{checkpoint}: {error}") from error
    source = Source(dlrm, checkpoint.stem, "1", weights=f"from {checkpoint.name}")
    return write_source(source, out, name)


def dlrm_of(weights: Weights, features: Sequence[str], mean: frozenset[str] = frozenset()) -> Dlrm:
    """Return the model of ``weights`` in FP32, its tables those of ``features`` in order.

    The bags of those in ``mean`` are averaged.
    """
    tables = tuple(
        Table(
            feature, "fp32", weights.dim, np.ascontiguousarray(rows).view(np.uint8), feature in mean
        )
        for feature, rows in zip(features, weights.in_order(features), strict=True)
    )
    last = len(weights.over) - 1
    return Dlrm(
        tables=tables,
        interacted=tuple(range(len(tables))),
        dense=tuple(_linear(layer, relu=True) for layer in weights.dense),
        over=tuple(_linear(layer, relu=at < last) for at, layer in enumerate(weights.over)),
        sigmoid=True,
        output=_OUTPUT,
        storage=np.empty(0, np.uint8),  # every table has memory of its own
    )


def _linear(layer: Layer, *, relu: bool) -> Linear:
    weight, bias = layer
    return Linear(np.ascontiguousarray(weight), np.ascontiguousarray(bias), relu)
