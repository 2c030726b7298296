"""NVIDIA's ``tritonclient[http]``, unmodified, against the HTTP/1.1 transport."""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.types import Array, InferRequest
from tests.fixtures.oip_grpc import as_pairs, as_table
from tests.fixtures.oip_http import Arrays, oip_served, one_id_each
from tests.fixtures.requests import features, random_request
from tests.fixtures.stock import Stock, Version, stocked
from transports.codecs.oip_tensors import datatype_of
from transports.http.server import HttpOptions, HttpTransport

triton: Any = pytest.importorskip("tritonclient.http")
utils: Any = pytest.importorskip("tritonclient.utils")

BACKEND = FakeBackend(FakeOptions())
REQUEST = random_request(BACKEND.spec, rows=3, seed=1)
MANY = random_request(BACKEND.spec, rows=2000, seed=2)

# Runs a function of the client on a thread: the client blocks, and the server has the loop.
Call = Callable[[Callable[[Any], Any]], Any]


@pytest.fixture
async def call() -> AsyncIterator[Call]:
    async with oip_served() as served:
        address = urlsplit(served.url).netloc

        def on_thread(use: Callable[[Any], Any]) -> Any:
            # gevent's objects belong to the thread that made them.
            client = triton.InferenceServerClient(address)
            try:
                return use(client)
            finally:
                client.close()

        yield lambda use: asyncio.to_thread(on_thread, use)


def inputs(arrays: Arrays, *, binary: bool = True) -> list[Any]:
    tensors = []
    for name, array in arrays.items():
        tensor = triton.InferInput(name, list(array.shape), datatype_of(array.dtype))
        tensor.set_data_from_numpy(array, binary_data=binary)
        tensors.append(tensor)
    return tensors


def right(result: Any, request: InferRequest) -> bool:
    scores: Array = result.as_numpy("default")
    return scores.tobytes() == BACKEND.score(request).tobytes()


async def test_health_is_asked(call: Call) -> None:
    assert await call(lambda client: client.is_server_live())
    assert await call(lambda client: client.is_server_ready())
    assert await call(lambda client: client.is_model_ready("fake"))
    assert await call(lambda client: client.is_model_ready("fake", "1"))
    assert not await call(lambda client: client.is_model_ready("nope"))
    assert not await call(lambda client: client.is_model_ready("fake", "9"))


async def test_the_server_and_its_models_are_described(call: Call) -> None:
    assert (await call(lambda client: client.get_server_metadata()))["name"] == "narsil"
    metadata = await call(lambda client: client.get_model_metadata("fake"))
    assert [tensor["shape"] for tensor in metadata["inputs"]] == [[-1, 3], [-1, 2]]
    assert metadata == await call(lambda client: client.get_model_metadata("fake", "1"))
    config = await call(lambda client: client.get_model_config("fake"))
    assert [tensor["dims"] for tensor in config["input"]] == [[3], [2]]
    index = await call(lambda client: client.get_model_repository_index())
    assert [(model["name"], model["state"]) for model in index] == [("fake", "READY")]


def statistics(client: Any, name: str) -> Any:
    return client.get_inference_statistics(name)


async def test_statistics_are_kept(call: Call) -> None:
    await call(lambda client: client.infer("fake", inputs(REQUEST.inputs)))
    for name in ("fake", ""):
        stats = await call(partial(statistics, name=name))
        (model,) = stats["model_stats"]
        assert (model["inference_count"], model["execution_count"]) == (3, 1)
        assert model["inference_stats"]["success"]["count"] == 1


@pytest.mark.parametrize("coding", [None, "gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("request_", [REQUEST, MANY], ids=["few", "many"])
async def test_scores_are_right_in_every_form(
    call: Call, request_: InferRequest, binary: bool, coding: str | None
) -> None:
    result = await call(
        lambda client: client.infer(
            "fake",
            inputs(request_.inputs, binary=binary),
            outputs=[triton.InferRequestedOutput("default", binary_data=binary)],
            request_compression_algorithm=coding,
            response_compression_algorithm=coding,
        )
    )
    assert right(result, request_)


async def test_every_encoding_of_ids_is_scored(call: Call) -> None:
    pairs = as_pairs(REQUEST, features(BACKEND.spec))
    assert right(await call(lambda client: client.infer("fake", inputs(pairs))), REQUEST)
    each = one_id_each(REQUEST)
    table = as_table(each)
    assert right(await call(lambda client: client.infer("fake", inputs(table))), each)


async def test_everything_a_call_may_say_is_taken(call: Call) -> None:
    result = await call(
        lambda client: client.infer(
            "fake",
            inputs(REQUEST.inputs),
            model_version="1",
            request_id="job 7",
            priority=2,
            timeout=5_000_000,
            headers={"X-Request-ID": "mine"},
            query_params={"unused": 1},
            parameters={"mine": 1},
        )
    )
    assert right(result, REQUEST)
    answer = result.get_response()
    assert (answer["id"], answer["model_version"]) == ("job 7", "1")


async def test_requests_may_be_under_way_together(call: Call) -> None:
    def several(client: Any) -> list[Any]:
        asked = [client.async_infer("fake", inputs(REQUEST.inputs)) for _ in range(8)]
        return [one.get_result() for one in asked]

    assert all(right(result, REQUEST) for result in await call(several))


async def test_arrays_that_are_not_contiguous_are_scored(call: Call) -> None:
    each = one_id_each(REQUEST)
    table = {name: np.asfortranarray(array) for name, array in as_table(each).items()}
    assert right(await call(lambda client: client.infer("fake", inputs(table))), each)


REFUSED = {
    "404": lambda client: client.infer("nope", inputs(REQUEST.inputs)),
    "400": lambda client: client.infer("fake", inputs(REQUEST.inputs)[:1]),
    "400 priority": lambda client: client.infer("fake", inputs(REQUEST.inputs), priority=99),
    "404 metadata": lambda client: client.get_model_metadata("nope"),
    "501 load": lambda client: client.load_model("fake"),
    "501 unload": lambda client: client.unload_model("fake"),
    "501 trace": lambda client: client.get_trace_settings(),
    "501 model trace": lambda client: client.update_trace_settings("fake", {"trace_level": "OFF"}),
    "501 log": lambda client: client.get_log_settings(),
    "501 update log": lambda client: client.update_log_settings({"log_info": True}),
    "501 system": lambda client: client.get_system_shared_memory_status(),
    "501 register": lambda client: client.register_system_shared_memory("a", "/a", 8),
    "501 unregister": lambda client: client.unregister_system_shared_memory(),
    "501 cuda": lambda client: client.get_cuda_shared_memory_status(),
    "501 register cuda": lambda client: client.register_cuda_shared_memory("a", b"eA==", 0, 8),
    "501 unregister cuda": lambda client: client.unregister_cuda_shared_memory("a"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_refusal_is_the_clients_own_error_with_our_words(call: Call, case: str) -> None:
    with pytest.raises(utils.InferenceServerException) as raised:
        await call(REFUSED[case])
    assert raised.value.status() == case.split(maxsplit=1)[0]
    assert raised.value.message()


async def test_models_are_loaded_and_unloaded_where_the_server_lets_clients() -> None:
    def control(client: Any) -> list[Any]:
        found = []
        for change in (client.unload_model, client.load_model):
            change("fake")
            found.append((client.is_model_ready("fake"), client.get_model_repository_index()))
        return found

    async with stocked({Version("1"): Stock([Version("2")])}) as state:
        state.engine.control = state.repository
        transport = HttpTransport(HttpOptions(port=0))
        (url,) = await transport.start(state.engine)
        with triton.InferenceServerClient(urlsplit(url).netloc) as client:
            unloaded, loaded = await asyncio.to_thread(control, client)
        await transport.stop(1.0)
    gone = {"name": "fake", "version": "", "state": "UNAVAILABLE", "reason": "unloaded"}
    assert unloaded == (False, [gone])
    assert loaded == (True, [{"name": "fake", "version": "2", "state": "READY", "reason": ""}])
