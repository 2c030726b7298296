"""Tensors in shared memory, over HTTP and gRPC alike."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scheduler.regions import Region
from scheduler.types import Array, InferRequest
from tests.fixtures.gates import Gate
from tests.fixtures.requests import DENSE, LENGTHS, VALUES
from tests.fixtures.shared_memory import At, RefusedError, Shapes, Shared, Wire, shared
from transports.codecs.oip_texts import MAX_TEXT_BYTES

ROWS = 3
INPUTS: dict[str, Array] = {
    DENSE: np.arange(ROWS * 3, dtype=np.float32).reshape(ROWS, 3),
    LENGTHS: np.ones((2, ROWS), np.int64),
    VALUES: np.arange(ROWS * 2, dtype=np.int64),
}
SHAPES: Shapes = {
    DENSE: ("FP32", (ROWS, 3)), LENGTHS: ("INT64", (2, ROWS)), VALUES: ("INT64", (ROWS * 2,)),
}  # fmt: skip
CONTENT = b"".join(array.tobytes() for array in INPUTS.values())
OUT_BYTES = 4 * ROWS
IN = Region("in", "/narsil-in", 0, len(CONTENT))
OUT = Region("out", "/narsil-out", 4, 64)


def places() -> dict[str, Array | At]:
    """Return where each input is in the region."""
    found: dict[str, Array | At] = {}
    offset = 0
    for name, array in INPUTS.items():
        found[name] = At(IN.name, array.nbytes, offset)
        offset += array.nbytes
    return found


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Shared]:
    async with shared(tmp_path) as serving:
        serving.create(IN.key, CONTENT)
        serving.create(OUT.key, 68)
        yield serving


@pytest.fixture(params=["http", "grpc"])
def wire(served: Shared, request: pytest.FixtureRequest) -> Wire:
    found: Wire = getattr(served, request.param)
    return found


async def both_registered(wire: Wire) -> None:
    await wire.register(IN)
    await wire.register(OUT)


async def refusal(wire: Wire, out: At, **inputs: Any) -> RefusedError:
    with pytest.raises(RefusedError) as raised:
        await wire.infer({**places(), **inputs}, SHAPES, out)
    return raised.value


def expected(served: Shared) -> list[float]:
    scores: list[float] = served.backend.score(InferRequest("fake", ROWS, INPUTS)).tolist()
    return scores


async def test_inputs_and_outputs_in_shared_memory_score_as_any_other(
    served: Shared, wire: Wire
) -> None:
    await both_registered(wire)
    await wire.infer(places(), SHAPES, At("out", OUT_BYTES, 8))
    assert served.scores(OUT.key, ROWS, offset=12).tolist() == expected(served)
    assert (served.folder / "narsil-out").read_bytes()[:12] == bytes(12)
    assert (served.folder / "narsil-out").read_bytes()[12 + OUT_BYTES :] == bytes(44)


async def test_some_inputs_in_shared_memory_and_some_not(served: Shared, wire: Wire) -> None:
    await both_registered(wire)
    for name, array in INPUTS.items():
        served.create(OUT.key, 68)
        await wire.register(OUT)
        await wire.infer({**places(), name: array}, SHAPES, At("out", OUT_BYTES))
        await wire.unregister("out")
        assert served.scores(OUT.key, ROWS, offset=4).tolist() == expected(served)
        await wire.register(OUT)


async def test_regions_are_one_set_for_every_client_and_transport(served: Shared) -> None:
    await served.http.register(IN)
    await served.grpc.register(OUT)
    assert await served.http.status() == sorted(await served.grpc.status()) == [IN, OUT]
    assert await served.grpc.status("in") == await served.http.status("in") == [IN]
    await served.grpc.infer(places(), SHAPES, At("out", OUT_BYTES))
    await served.http.unregister("in")
    await served.http.unregister("in")
    assert await served.grpc.status() == [OUT]
    await served.grpc.register(IN)
    await served.grpc.unregister()
    assert await served.http.status() == []


async def test_the_extension_is_named_where_it_is_served(served: Shared, tmp_path: Path) -> None:
    async with shared(tmp_path, prefix="") as without:
        for one, named in ((served, True), (without, False)):
            http = (await one.http.client.get("/v2")).json()["extensions"]
            grpc = (await one.grpc.client.call("ServerMetadata")).extensions
            assert ("system_shared_memory" in http, "system_shared_memory" in grpc) == (named,) * 2


@pytest.mark.parametrize("name", ["http", "grpc"])
async def test_without_the_option_everything_says_how_to_turn_it_on(
    tmp_path: Path, name: str
) -> None:
    async with shared(tmp_path, prefix="") as without:
        wire: Wire = getattr(without, name)
        for asked in (wire.register(IN), wire.unregister(), wire.status()):
            with pytest.raises(RefusedError, match=r"server\.shared_memory") as raised:
                await asked
            assert raised.value.status == 501
        refused = await refusal(wire, At("out", OUT_BYTES))
        assert refused.status == 501
        assert "server.shared_memory" in str(refused)


async def test_memory_of_a_gpu_is_not_served_and_unregistering_it_is_no_error(
    served: Shared,
) -> None:
    http, call = served.http.client, served.grpc.client.call
    answer = await http.post("/v2/cudasharedmemory/region/a/register")
    assert answer.status_code == 501
    assert "register system shared memory instead" in answer.json()["detail"]
    assert (await http.get("/v2/cudasharedmemory/status")).json() == []
    assert (await http.get("/v2/cudasharedmemory/region/a/status")).status_code == 400
    assert (await http.post("/v2/cudasharedmemory/unregister")).status_code == 200
    assert not (await call("CudaSharedMemoryStatus")).regions
    await call("CudaSharedMemoryUnregister")


MISPLACED = [
    (At("nope", 12), "output 'default': shared memory region 'nope' is not registered"),
    (At("out", 65), "has 64 bytes, but 65 from offset 0 are asked for"),
    (At("out", 12, 53), "has 64 bytes, but 12 from offset 53 are asked for"),
    (At("out", 12, 2**63 - 1), f"12 from offset {2**63 - 1}"),
    (At("out", 8), "shared_memory_byte_size is 8, but it has 12 bytes"),
    (At("out", -1), "shared_memory_byte_size is -1, expected an integer of 0 or more"),
    (At("out", 12, -4), "shared_memory_offset is -4, expected an integer of 0 or more"),
    (At("out", True), "shared_memory_byte_size is true, expected an integer"),
    (At("out", "12"), 'shared_memory_byte_size is "12", expected an integer'),
    (At(7, 12), "shared_memory_region is 7, expected a string"),
]


async def test_a_place_that_does_not_fit_is_refused_before_anything_is_computed(
    served: Shared, wire: Wire
) -> None:
    await both_registered(wire)
    for out, named in MISPLACED:
        refused = await refusal(wire, out)
        assert refused.status == 400, named
        assert named in str(refused)
    assert not served.backend.batches


async def test_what_the_memory_holds_is_checked_as_any_other_input(
    served: Shared, wire: Wire
) -> None:
    await both_registered(wire)
    out = At("out", OUT_BYTES)
    short = At("in", INPUTS[DENSE].nbytes - 4)
    assert "has 32 bytes, expected 36" in str(await refusal(wire, out, **{DENSE: short}))
    served.create(IN.key, CONTENT[:-8] + np.int64(5000).tobytes())
    assert "id 5000" in str(await refusal(wire, out))
    assert not served.backend.batches


async def test_an_object_cut_short_harms_only_those_who_use_it(served: Shared, wire: Wire) -> None:
    await both_registered(wire)
    out = At("out", OUT_BYTES)
    with (served.folder / "narsil-in").open("r+b") as file:
        file.truncate(len(CONTENT) - 1)
    assert "has become shorter" in str(await refusal(wire, out))
    served.create(IN.key, CONTENT)
    with (served.folder / "narsil-out").open("r+b") as file:
        file.truncate(0)
    assert "has become shorter" in str(await refusal(wire, out))
    assert (served.folder / "narsil-out").stat().st_size == 0
    served.create(OUT.key, 68)
    await wire.infer(places(), SHAPES, out)
    assert served.scores(OUT.key, ROWS, offset=4).tolist() == expected(served)


async def test_a_region_unregistered_meanwhile_is_not_written_to(
    served: Shared, wire: Wire
) -> None:
    await both_registered(wire)
    gate = Gate()
    served.backend.before_run = gate
    asking = asyncio.create_task(refusal(wire, At("out", OUT_BYTES)))
    run = await gate.began()
    await wire.unregister("out")
    run.finish()
    assert "unregistered meanwhile" in str(await asking)
    assert served.scores(OUT.key, 17).tolist() == [0.0] * 17


async def test_inputs_changed_once_they_are_read_change_nothing(served: Shared, wire: Wire) -> None:
    await both_registered(wire)
    gate = Gate()
    served.backend.before_run = gate
    asking = asyncio.create_task(wire.infer(places(), SHAPES, At("out", OUT_BYTES)))
    run = await gate.began()
    served.create(IN.key, b"\xff" * len(CONTENT))
    run.finish()
    await asking
    assert served.scores(OUT.key, ROWS, offset=4).tolist() == expected(served)


async def test_inputs_in_shared_memory_have_the_limit_of_a_body(tmp_path: Path) -> None:
    async with shared(
        tmp_path, max_request_bytes=1000, max_json_bytes=1000, max_buffered_bytes=10_000
    ) as served:
        served.create("/narsil-in", 4096)
        await served.http.register(Region("in", "/narsil-in", 0, 4096))
        await served.http.register(Region("out", "/narsil-in", 0, 4096))
        many = At("in", 1001 - INPUTS[DENSE].nbytes)
        refused = await refusal(served.http, At("out", 12), **{LENGTHS: many})
        assert refused.status == 413
        assert "have 1001 bytes up to here, the limit is 1000" in str(refused)


async def test_texts_in_shared_memory_have_the_limit_of_any_other(
    served: Shared, wire: Wire
) -> None:
    served.create("/narsil-texts", MAX_TEXT_BYTES + 1)
    await wire.register(OUT)
    await wire.register(Region("texts", "/narsil-texts", 0, MAX_TEXT_BYTES + 1))
    shapes = {**SHAPES, "cat_0.values": ("BYTES", (1,))}
    texts: dict[str, Array | At] = {"cat_0.values": At("texts", MAX_TEXT_BYTES + 1)}
    with pytest.raises(RefusedError, match=f"above the limit of {MAX_TEXT_BYTES} bytes"):
        await wire.infer(texts, shapes, At("out", OUT_BYTES))


async def test_a_tensor_has_its_bytes_in_one_place_only(served: Shared) -> None:
    await both_registered(served.http)
    body = {"inputs": [{"name": DENSE, "datatype": "FP32", "shape": [1, 1], "data": [1.0],
                        "parameters": At("in", 4).parameters()}]}  # fmt: skip
    answer = await served.http.client.post("/v2/models/fake/infer", json=body)
    assert "has both data and shared_memory_region" in answer.json()["detail"]
