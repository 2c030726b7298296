"""Run as a script: TorchRec's published client, as its package has it, against the port given.

First the module itself, as its users run it; then its own functions with ids of either width. Its
stubs are imported from the folder given as PYTHONPATH. What came back is printed as JSON.
"""

import argparse
import contextlib
import io
import json
import runpy
import sys
from typing import Any

import grpc
import predictor_pb2_grpc
import torch
from torchrec.datasets.utils import Batch
from torchrec.inference import client
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

ROWS, TABLE_ROWS = 7, 1000


def published(port: str) -> str:
    """Run the client's module; return what it prints."""
    sys.argv = ["client", "--ip=127.0.0.1", f"--port={port}", f"--batch_size={ROWS}"]
    sys.argv.append(f"--num_embedding_features={TABLE_ROWS}")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(client.__file__), run_name="__main__")
    return printed.getvalue()


def arguments() -> argparse.Namespace:
    """Return what the client's functions read of its command line."""
    return argparse.Namespace(
        batch_size=ROWS,
        num_float_features=13,
        num_id_list_features=26,
        num_embedding_features=TABLE_ROWS,
    )


def ask(stub: Any, batch: Batch, id_type: torch.dtype) -> list[float]:
    """Return the scores of ``batch`` with its ids and lengths as ``id_type``."""
    ids = batch.sparse_features
    cast = KeyedJaggedTensor(
        ids.keys(), ids.values().to(id_type), lengths=ids.lengths().to(id_type)
    )
    request = client.create_request(Batch(batch.dense_features, cast, batch.labels), arguments())
    return list(stub.Predict(request).predictions["default"].data)


def main() -> None:
    """Print what came back."""
    port = sys.argv[1]
    printed = published(port)
    batch = client.create_training_batch(arguments())
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = predictor_pb2_grpc.PredictorStub(channel)
        scores = {str(kind): ask(stub, batch, kind) for kind in (torch.int32, torch.int64)}
    tensors = {
        "dense": batch.dense_features.tolist(),
        "lengths": batch.sparse_features.lengths().reshape(26, ROWS).tolist(),
        "values": batch.sparse_features.values().tolist(),
    }
    json.dump({"published": printed, "scores": scores, "tensors": tensors}, sys.stdout)


if __name__ == "__main__":
    main()
