"""Packed bodies of the Open Inference Protocol, both ways."""

import gzip
import zlib
from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest

from backends.fake import FakeBackend, FakeOptions
from tests.fixtures.oip_http import (
    INFER,
    OipServed,
    binary_body,
    json_body,
    oip_served,
    one_id_each,
    predicted,
)
from tests.fixtures.requests import (
    as_json,
    random_request,
)

FAKE = FakeBackend(FakeOptions()).spec
REQUEST = random_request(FAKE, rows=7, seed=3)
ONE_EACH = one_id_each(REQUEST)
PACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}


@pytest.fixture
async def served() -> AsyncIterator[OipServed]:
    async with oip_served(max_request_bytes=1_000_000, max_json_bytes=500_000) as serving:
        yield serving


@pytest.mark.parametrize("coding", PACK)
async def test_a_packed_request_is_unpacked_and_its_json_bytes_count_unpacked(
    served: OipServed, coding: str
) -> None:
    headers, body = binary_body(REQUEST.inputs)
    named = {**headers, "content-encoding": coding}
    answer = await served.infer(PACK[coding](body), **named)
    assert answer.outputs["default"].tobytes() == (await predicted(served, REQUEST)).tobytes()


@pytest.mark.parametrize("coding", PACK)
@pytest.mark.parametrize("binary", [False, True])
async def test_a_large_answer_is_packed_for_a_client_that_takes_it(
    served: OipServed, coding: str, binary: bool
) -> None:
    request = random_request(FAKE, rows=2000, seed=4)
    headers, body = binary_body(request.inputs, parameters={"binary_data_output": binary})
    named = {**headers, "accept-encoding": coding}
    packed = await served.client.post(INFER, content=body, headers=named)
    assert packed.headers["content-encoding"] == coding
    assert int(packed.headers["content-length"]) < len(packed.content)
    plain = await served.client.post(
        INFER, content=body, headers={**headers, "accept-encoding": ""}
    )
    assert "content-encoding" not in plain.headers
    assert packed.content == plain.content


async def test_a_small_answer_is_not_packed(served: OipServed) -> None:
    headers = {"accept-encoding": "gzip"}
    answer = await served.client.post(INFER, content=json_body(REQUEST.inputs), headers=headers)
    assert "content-encoding" not in answer.headers


async def test_predict_takes_packed_bodies_too(served: OipServed) -> None:
    headers = {"content-encoding": "gzip"}
    body = gzip.compress(as_json(REQUEST, FAKE))
    answer = await served.client.post("/v1/predict", content=body, headers=headers)
    scores = np.array(answer.json()["predictions"]["default"], np.float32)
    assert scores.tobytes() == (await predicted(served, REQUEST)).tobytes()
