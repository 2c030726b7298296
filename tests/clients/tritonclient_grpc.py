"""Run as a script: every call of tritonclient's two gRPC clients, against the address given.

A process of its own, since both its messages and ours are called ``inference.*``, and protobuf
takes a name once a process. What came back is printed as one JSON object.
"""

import asyncio
import json
import queue
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import numpy as np
import tritonclient.grpc as sync_client
import tritonclient.grpc.aio as aio_client
from tritonclient.utils import InferenceServerException

MODEL = "fake"
ROWS = 4


def inputs(seed: int = 0, first_id: int = 0) -> list[Any]:
    """Return tensors of ``ROWS`` rows, one id a feature."""
    dense = sync_client.InferInput("float_features", [ROWS, 3], "FP32")
    dense.set_data_from_numpy(np.full((ROWS, 3), seed, np.float32))
    ids = sync_client.InferInput("id_list_features", [ROWS, 2], "INT64")
    ids.set_data_from_numpy(np.arange(first_id, first_id + ROWS * 2).reshape(ROWS, 2))
    return [dense, ids]


def scores(result: Any) -> list[list[float]]:
    """Return the scores as the client shapes them."""
    shaped: list[list[float]] = result.as_numpy("default").tolist()
    return shaped


def failure(call: Callable[[], Any]) -> str:
    """Return the status with which ``call`` fails."""
    try:
        call()
    except InferenceServerException as error:
        return str(error.status())
    return "answered"


def run_sync(url: str) -> dict[str, Any]:
    """Make every call of the blocking client."""
    with sync_client.InferenceServerClient(url) as client:
        return {
            "live": client.is_server_live(),
            "ready": client.is_server_ready(),
            "models_ready": [client.is_model_ready(name) for name in (MODEL, "nope")],
            "server": client.get_server_metadata(as_json=True),
            "model": client.get_model_metadata(MODEL, as_json=True),
            "config": client.get_model_config(MODEL, as_json=True)["config"],
            "index": client.get_model_repository_index(as_json=True),
            "infer": infer(client),
            "async": asynchronous(client),
            "stream": stream(client),
            "statistics": client.get_inference_statistics(MODEL, as_json=True),
            "refused": refused(client),
        }


def infer(client: Any) -> dict[str, Any]:
    """Ask with everything that a call can carry."""
    result = client.infer(
        MODEL,
        inputs(seed=1),
        model_version="1",
        outputs=[sync_client.InferRequestedOutput("default")],
        request_id="my id",
        priority=2,
        timeout=5_000_000,
        client_timeout=60,
        headers={"x-request-id": "my-call"},
        parameters={"mine": "text"},
    )
    return {"scores": scores(result), "id": result.get_response().id}


def asynchronous(client: Any) -> list[list[float]]:
    """Ask with a callback."""
    answers: queue.Queue[Any] = queue.Queue()
    client.async_infer(
        MODEL, inputs(seed=2), callback=lambda result, error: answers.put(error or result)
    )
    return scores(answers.get(timeout=60))


def stream(client: Any) -> list[Any]:
    """Ask three times in a stream; the second request is wrong."""
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(callback=lambda result, error: answers.put(error or result))
    for number, first_id in enumerate((0, 5000, 0)):
        client.async_stream_infer(MODEL, inputs(number, first_id), request_id=str(number))
    received = [answers.get(timeout=60) for _ in range(3)]
    client.stop_stream()
    return [
        answer.message() if isinstance(answer, InferenceServerException) else scores(answer)
        for answer in received
    ]


def refused(client: Any) -> dict[str, str]:
    """Ask for what is not served."""
    calls: dict[str, Callable[[], Any]] = {
        "load_files": lambda: client.load_model(MODEL, config="{}", files={"file:1/x": b"x"}),
        "trace": client.get_trace_settings,
        "update_trace": lambda: client.update_trace_settings(settings={"trace_level": "OFF"}),
        "log": client.get_log_settings,
        "update_log": lambda: client.update_log_settings({"log_info": True}),
        "system_memory": client.get_system_shared_memory_status,
        "register_system": lambda: client.register_system_shared_memory("r", "/k", 8),
        "unregister_system": client.unregister_system_shared_memory,
        "cuda_memory": client.get_cuda_shared_memory_status,
        "register_cuda": lambda: client.register_cuda_shared_memory("r", b"aGFuZGxl", 0, 8),
        "unregister_cuda": client.unregister_cuda_shared_memory,
    }
    return {name: failure(call) for name, call in calls.items()}


async def run_aio(url: str) -> dict[str, Any]:
    """Make the calls of the asyncio client."""

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for number in range(2):
            yield {"model_name": MODEL, "inputs": inputs(number), "request_id": str(number)}

    async with aio_client.InferenceServerClient(url) as client:
        ready = [await client.is_server_live(), await client.is_server_ready()]
        ready.append(await client.is_model_ready(MODEL))
        model = await client.get_model_metadata(MODEL, as_json=True)
        others = await described(client)
        result = await client.infer(MODEL, inputs(seed=1), request_id="my id")
        streamed = [
            scores(answer) async for answer, error in client.stream_infer(requests()) if not error
        ]
    return {"ready": ready, "model": model, "infer": scores(result), "stream": streamed, **others}


async def described(client: Any) -> dict[str, Any]:
    """Make the asyncio client's other calls."""
    refused = {
        "load_files": client.load_model(MODEL, config="{}", files={"file:1/x": b"x"}),
        "trace": client.get_trace_settings(),
        "update_trace": client.update_trace_settings(settings={"trace_level": "OFF"}),
        "log": client.get_log_settings(),
        "update_log": client.update_log_settings({"log_info": True}),
        "system_memory": client.get_system_shared_memory_status(),
        "register_system": client.register_system_shared_memory("r", "/k", 8),
        "unregister_system": client.unregister_system_shared_memory(),
        "cuda_memory": client.get_cuda_shared_memory_status(),
        "register_cuda": client.register_cuda_shared_memory("r", b"aGFuZGxl", 0, 8),
        "unregister_cuda": client.unregister_cuda_shared_memory(),
    }
    return {
        "server": await client.get_server_metadata(as_json=True),
        "config": (await client.get_model_config(MODEL, as_json=True))["config"],
        "index": await client.get_model_repository_index(as_json=True),
        "statistics": await client.get_inference_statistics(MODEL, as_json=True),
        "refused": {name: await failure_of(call) for name, call in refused.items()},
    }


async def failure_of(call: Awaitable[Any]) -> str:
    """Return the status with which ``call`` fails."""
    try:
        await call
    except InferenceServerException as error:
        return str(error.status())
    return "answered"


def control(url: str) -> dict[str, Any]:
    """Unload the model and load it again."""
    with sync_client.InferenceServerClient(url) as client:

        def after(call: Callable[[str], Any]) -> dict[str, Any]:
            answer = failure(lambda: call(MODEL))
            index = client.get_model_repository_index(as_json=True)["models"]
            versions = [model.get("version", "") for model in index]
            ready = client.is_model_ready(MODEL)
            return {"answer": answer, "ready": ready, "versions": versions}

        return {
            "unloaded": after(client.unload_model),
            "loaded": after(client.load_model),
            "unknown": failure(lambda: client.load_model("nope")),
        }


def main() -> None:
    """Print what came back."""
    url = sys.argv[1]
    answers = {"sync": run_sync(url), "aio": asyncio.run(run_aio(url)), **control(url)}
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
