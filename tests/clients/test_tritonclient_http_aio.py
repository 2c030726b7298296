"""NVIDIA's ``tritonclient[http]``, its asyncio client, against the HTTP/1.1 transport."""

from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.clients.test_tritonclient_http import MANY, inputs, right
from tests.fixtures.oip_http import oip_served

aio: Any = pytest.importorskip("tritonclient.http.aio")
utils: Any = pytest.importorskip("tritonclient.utils")


@pytest.fixture
async def client() -> AsyncIterator[Any]:
    async with (
        oip_served() as served,
        aio.InferenceServerClient(urlsplit(served.url).netloc) as connected,
    ):
        yield connected


async def test_health_and_descriptions_are_asked(client: Any) -> None:
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready("fake", "1")
    assert not await client.is_model_ready("nope")
    assert (await client.get_server_metadata())["name"] == "narsil"
    assert (await client.get_model_metadata("fake", "1"))["versions"] == ["1"]
    assert (await client.get_model_config("fake"))["name"] == "fake"
    assert [model["name"] for model in await client.get_model_repository_index()] == ["fake"]


@pytest.mark.parametrize("coding", [None, "gzip", "deflate"])
async def test_scores_are_right_and_counted(client: Any, coding: str | None) -> None:
    result = await client.infer(
        "fake",
        inputs(MANY.inputs),
        request_id="7",
        priority=1,
        timeout=30_000_000,
        request_compression_algorithm=coding,
        response_compression_algorithm=coding,
    )
    assert right(result, MANY)
    (model,) = (await client.get_inference_statistics("fake"))["model_stats"]
    assert model["inference_count"] == MANY.rows


SAYS_WHY = "is not served here|clients may not load and unload models|shared memory is off"
UNSERVED: dict[str, Callable[[Any], Any]] = {
    "load": lambda client: client.load_model("fake"),
    "unload": lambda client: client.unload_model("fake"),
    "trace": lambda client: client.get_trace_settings("fake"),
    "update trace": lambda client: client.update_trace_settings(settings={"trace_level": "OFF"}),
    "log": lambda client: client.get_log_settings(),
    "update log": lambda client: client.update_log_settings({"log_info": True}),
    "system": lambda client: client.get_system_shared_memory_status(),
    "register system": lambda client: client.register_system_shared_memory("a", "/a", 8),
    "unregister system": lambda client: client.unregister_system_shared_memory("a"),
    "cuda": lambda client: client.get_cuda_shared_memory_status(),
    "register cuda": lambda client: client.register_cuda_shared_memory("a", b"eA==", 0, 8),
    "unregister cuda": lambda client: client.unregister_cuda_shared_memory(),
}


async def test_what_is_not_served_is_refused_in_words_the_client_reads(client: Any) -> None:
    for name, call in UNSERVED.items():
        with pytest.raises(utils.InferenceServerException, match=SAYS_WHY) as raised:
            await call(client)
        assert raised.value.status() == "501", name
