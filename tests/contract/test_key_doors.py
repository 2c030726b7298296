"""What is open to all, what needs an API key, and what needs one with control."""

from typing import Any

import grpc.aio
import httpx
import pytest

from tests.contract.keyed import BEARER, KEY, Keyed, on_module_loop
from tests.fixtures.oip_grpc import SERVICE as OIP
from transports.proto import open_inference_pb2 as oip

OPEN = (
    "/livez",
    "/readyz",
    "/startupz",
    "/healthz",
    "/ping",
    "/v2/health/live",
    "/v2/health/ready",
)
CLOSED = (
    "/v1/models", "/v1/models/fake", "/v2", "/v2/models/fake", "/v2/models/fake/ready",
    "/v2/models/fake/config", "/v2/models/stats", "/docs", "/openapi.json", "/nowhere", "//livez",
    "/livez/", "/LIVEZ",
)  # fmt: skip


@on_module_loop
async def test_probes_are_open_and_every_other_path_needs_a_key(keyed: Keyed) -> None:
    async with httpx.AsyncClient(base_url=keyed.served.urls["http"], timeout=60) as http:
        for path in OPEN:
            assert (await http.get(path)).status_code == 200, path
        for path in CLOSED:
            without = await http.get(path)
            assert without.status_code == 401, path
            assert without.json()["type"] == "urn:narsil:error:unauthenticated"
            assert (await http.get(path, headers=BEARER)).status_code != 401, path
        assert (await http.post("/v2/repository/index")).status_code == 401


def oip_call(channel: grpc.aio.Channel, name: str, key: str) -> Any:
    request = getattr(oip, f"{name}Request")
    answer = getattr(oip, f"{name}Response").FromString
    call = channel.unary_unary(f"/{OIP}/{name}", request.SerializeToString, answer)
    return call(request(), metadata=(("x-api-key", key),) if key else (), timeout=20)


@on_module_loop
@pytest.mark.parametrize("name", ["grpc", "grpc-grpcio"])
async def test_health_is_open_over_grpc_and_what_tells_of_models_needs_a_key(
    keyed: Keyed, name: str
) -> None:
    channel = keyed.channels[name]
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    assert await check(b"", timeout=20)
    for open_to_all in ("ServerLive", "ServerReady"):
        await oip_call(channel, open_to_all, "")
    for method in ("ServerMetadata", "ModelReady", "ModelMetadata", "ModelConfig",
                   "ModelStatistics", "RepositoryIndex", "RepositoryModelLoad"):  # fmt: skip
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await oip_call(channel, method, "")
        assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED, method


@on_module_loop
@pytest.mark.parametrize("name", ["grpc", "grpc-grpcio"])
@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("/v2/repository/models/fake/unload", "RepositoryModelUnload"),
        ("/v2/systemsharedmemory/region/a/register", "SystemSharedMemoryRegister"),
        ("/v2/systemsharedmemory/unregister", "SystemSharedMemoryUnregister"),
    ],
)
async def test_only_a_key_with_control_may_load_unload_and_register_memory(
    keyed: Keyed, name: str, path: str, method: str
) -> None:
    async with httpx.AsyncClient(base_url=keyed.served.urls["http"], timeout=60) as http:
        assert (await http.post(path, headers=BEARER)).status_code == 403
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await oip_call(keyed.channels[name], method, KEY)
        assert refusal.value.code() is grpc.StatusCode.PERMISSION_DENIED
        keyed.write(control="true")
        # Let through, to what is not served without server.model_control or shared_memory.
        assert (await http.post(path, headers=BEARER)).status_code == 501
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await oip_call(keyed.channels[name], method, KEY)
        assert refusal.value.code() is grpc.StatusCode.UNIMPLEMENTED
