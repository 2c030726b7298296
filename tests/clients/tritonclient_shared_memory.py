"""Run as a script: tritonclient's shared memory over HTTP or gRPC (its name, then an address).

A process of its own, since its messages and ours are called ``inference.*`` both. What came back
is printed as one JSON object.
"""

import json
import sys
from importlib import import_module
from typing import Any

import numpy as np
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

MODEL, ROWS = "fake", 4
IN_BYTES, OUT_BYTES = 256, 64


def asked(client_module: Any, name: str) -> list[Any]:
    """Return the inputs, in the region ``name`` at the places where ``fill`` puts them."""
    dense = client_module.InferInput("float_features", [ROWS, 3], "FP32")
    dense.set_shared_memory(name, ROWS * 3 * 4)
    ids = client_module.InferInput("id_list_features", [ROWS, 2], "INT64")
    ids.set_shared_memory(name, ROWS * 2 * 8, offset=128)
    return [dense, ids]


def fill(region: Any) -> None:
    """Put one id a feature, and a row's number as its dense features, into ``region``."""
    dense = np.repeat(np.arange(ROWS, dtype=np.float32), 3).reshape(ROWS, 3)
    shm.set_shared_memory_region(region, [dense])
    shm.set_shared_memory_region(region, [np.arange(ROWS * 2).reshape(ROWS, 2)], offset=128)


def failure(call: Any) -> str:
    """Return the message with which ``call`` fails."""
    try:
        call()
    except InferenceServerException as error:
        return str(error.message())
    return "answered"


def run(client_module: Any, url: str, prefix: str) -> dict[str, Any]:
    """Make every call of shared memory, and infer through it."""
    client = client_module.InferenceServerClient(url)
    keys = (f"{prefix}-in", f"{prefix}-out")
    inputs = shm.create_shared_memory_region("in", keys[0], IN_BYTES, create_only=True)
    outputs = shm.create_shared_memory_region("out", keys[1], OUT_BYTES, create_only=True)
    try:
        fill(inputs)
        client.unregister_system_shared_memory()
        client.unregister_cuda_shared_memory()
        client.register_system_shared_memory("in", keys[0], IN_BYTES)
        client.register_system_shared_memory("out", keys[1], OUT_BYTES)
        output = client_module.InferRequestedOutput("default")
        output.set_shared_memory("out", ROWS * 4, offset=16)
        result = client.infer(MODEL, asked(client_module, "in"), outputs=[output])
        plain = client.infer(MODEL, asked(client_module, "in"))
        status = client.get_system_shared_memory_status()
        client.unregister_system_shared_memory("in")
        return {
            "written": shm.get_contents_as_numpy(outputs, np.float32, [ROWS, 1], 16).tolist(),
            "plain": plain.as_numpy("default").tolist(),
            "answered": result.get_output("default") is not None,
            "regions": len(status if isinstance(status, list) else status.regions),
            "gone": failure(lambda: client.infer(MODEL, asked(client_module, "in"))),
            "cuda": failure(lambda: client.register_cuda_shared_memory("c", b"aGFuZGxl", 0, 8)),
        }
    finally:
        client.unregister_system_shared_memory()
        shm.destroy_shared_memory_region(inputs)
        shm.destroy_shared_memory_region(outputs)
        client.close()


if __name__ == "__main__":
    protocol, address, name_prefix = sys.argv[1:]
    print(json.dumps(run(import_module(f"tritonclient.{protocol}"), address, name_prefix)))
