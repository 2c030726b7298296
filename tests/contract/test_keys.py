"""API keys and their limits, over every wire alike."""

import hashlib

import grpc.aio
import pytest

from scheduler.errors import Code
from tests.contract.keyed import BEARER, KEY, OLD, OTHER, WIRES, Headers, Keyed, on_module_loop
from tests.fixtures.oip_grpc import SERVICE as OIP
from tests.fixtures.oip_grpc import message_of
from tests.fixtures.requests import random_request
from transports.proto import open_inference_pb2 as oip


@on_module_loop
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    "headers",
    [
        BEARER,
        {"authorization": f"bearer  {OLD}"},
        {"x-api-key": KEY},
        {"authorization": "Basic dTpw", "x-api-key": OTHER},
    ],
    ids=["bearer", "the former key", "x-api-key", "beside another scheme"],
)
async def test_a_key_that_is_known_gets_scores(keyed: Keyed, wire: str, headers: Headers) -> None:
    assert not (await keyed.asks[wire](2, headers)).codes


@on_module_loop
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("headers", "outcome"),
    [
        ({}, "missing"),
        ({"authorization": "Bearer"}, "missing"),
        ({"authorization": "Basic dTpw"}, "missing"),
        ({"x-api-key": KEY + "x"}, "unknown"),
        ({"x-api-key": KEY[:-1]}, "unknown"),
        ({"authorization": f"Bearer {'k' * 4000}"}, "unknown"),
        # The hash is no key.
        ({"x-api-key": hashlib.sha256(KEY.encode()).hexdigest()}, "unknown"),
        # The first scheme decides.
        ({"authorization": "Bearer x", "x-api-key": KEY}, "unknown"),
    ],
    ids=["none", "empty", "another scheme", "longer", "shorter", "huge", "the hash", "two"],
)
async def test_any_other_is_refused_in_the_same_words_before_its_body_is_read(
    keyed: Keyed, wire: str, headers: Headers, outcome: str
) -> None:
    refused = await keyed.asks[wire](2, headers)
    assert refused.codes == {Code.UNAUTHENTICATED}
    words = {"missing": "an API key is needed", "unknown": "the API key is not known"}
    assert refused.detail.startswith(words[outcome])
    if wire.startswith("http"):
        assert refused.headers["www-authenticate"] == "Bearer"
    assert refused.headers["x-request-id"]
    assert await keyed.counted() == {("", outcome): 1}
    assert keyed.served.recorder.answers[-1].code is Code.UNAUTHENTICATED


@on_module_loop
@pytest.mark.parametrize("wire", WIRES)
async def test_requests_over_the_rate_are_told_when_to_come_back_and_then_served(
    keyed: Keyed, wire: str
) -> None:
    keyed.write(requests_per_s="0.002", burst_s="1500")
    ask = keyed.asks[wire]
    for _ in range(3):
        assert not (await ask(1, BEARER)).codes
    refused = await ask(1, BEARER)
    assert Code.RATE_LIMITED in refused.codes
    assert "the key ranker may ask for 0.002 requests a second (requests_per_s)" in refused.detail
    again = refused.headers["retry-after" if wire.startswith("http") else "grpc-retry-pushback-ms"]
    again_s = int(again) * (1 if wire.startswith("http") else 1e-3)
    assert 440 < again_s <= 500 if keyed.served.front_ends else again_s == 500
    assert await keyed.counted() == {("ranker", "ok"): 3, ("ranker", "rate_limited"): 1}
    assert not (await ask(1, {"x-api-key": OTHER})).codes  # a neighbour
    keyed.passes(500)
    assert not (await ask(1, BEARER)).codes


@on_module_loop
@pytest.mark.parametrize("wire", WIRES)
async def test_rows_over_the_rate_are_refused_and_a_request_larger_than_the_burst_is_paid_off(
    keyed: Keyed, wire: str
) -> None:
    keyed.write(rows_per_s="0.01", burst_s="1000")
    ask = keyed.asks[wire]
    assert not (await ask(6, BEARER)).codes
    refused = await ask(6, BEARER)
    assert Code.RATE_LIMITED in refused.codes
    assert "0.01 rows a second (rows_per_s)" in refused.detail
    assert not (await ask(4, BEARER)).codes  # what is left
    assert Code.RATE_LIMITED in (await ask(1, BEARER)).codes
    keyed.passes(1000)
    assert not (await ask(30, BEARER)).codes
    keyed.passes(1900)
    assert Code.RATE_LIMITED in (await ask(1, BEARER)).codes
    keyed.passes(300)
    assert not (await ask(1, BEARER)).codes


@on_module_loop
async def test_one_limit_holds_for_all_wires_together(keyed: Keyed) -> None:
    keyed.write(requests_per_s="0.004", burst_s="1000")
    for ask in keyed.asks.values():
        assert not (await ask(1, BEARER)).codes
    for ask in keyed.asks.values():
        assert Code.RATE_LIMITED in (await ask(1, BEARER)).codes


@on_module_loop
@pytest.mark.parametrize("wire", WIRES)
async def test_a_key_taken_out_of_the_file_is_refused_from_then_on(keyed: Keyed, wire: str) -> None:
    ask = keyed.asks[wire]
    assert not (await ask(1, BEARER)).codes
    keyed.file.write_text(keyed.file.read_text().replace("[ranker]", "[unused]").replace(
        hashlib.sha256(KEY.encode()).hexdigest(), "0" * 64))  # fmt: skip
    assert (await ask(1, BEARER)).codes == {Code.UNAUTHENTICATED}
    assert not (await ask(1, {"x-api-key": OTHER})).codes


@on_module_loop
@pytest.mark.parametrize("name", ["grpc", "grpc-grpcio"])
async def test_each_request_of_a_stream_counts_and_an_unknown_key_opens_none(
    keyed: Keyed, name: str
) -> None:
    call = keyed.channels[name].stream_stream(
        f"/{OIP}/ModelStreamInfer", oip.ModelInferRequest.SerializeToString,
        oip.ModelStreamInferResponse.FromString,
    )  # fmt: skip
    asked = message_of(random_request(keyed.served.engine.spec(""), 1, seed=1).inputs)
    unknown = call(metadata=(("x-api-key", "nobody"),), timeout=20)
    assert await unknown.code() is grpc.StatusCode.UNAUTHENTICATED
    keyed.write(requests_per_s="0.002", burst_s="1000")
    stream = call(metadata=tuple(BEARER.items()), timeout=20)
    errors = []
    for _ in range(3):
        await stream.write(asked)
        errors.append((await stream.read()).error_message)
    assert errors[:2] == ["", ""]
    assert "0.002 requests a second" in errors[2]
    keyed.passes(1000)
    keyed.file.write_text("[other]\nsha256 = '" + "0" * 64 + "'\n")
    await stream.write(asked)
    assert (await stream.read()).error_message == "the API key is not known"
    await stream.done_writing()
    assert await stream.code() is grpc.StatusCode.OK
