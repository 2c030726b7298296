"""What breaks on the wire elsewhere: sizes, NaN, slow encodings, headers that clients leave out.

Further tests of the same reports: tests/contract/test_bad_input.py (NaN in JSON, 38),
tests/unit/test_http3_foreign_clients.py (libcurl's uploads of 64 and 65 MiB, 37 and 41),
tests/clients (Triton's own client, 44).
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import grpc.aio
import httpx
import numpy as np
import orjson
import pytest

from backends.fake import FakeBackend
from scheduler.errors import Code, ServingError
from scheduler.types import Batch
from tests.abuse.victim import memory_bytes, victim
from tests.contract.every_wire import Asker, every_wire
from tests.e2e.clients import served_by
from tests.fixtures.oip_grpc import OipClient, message_of, scores_of, typed_message_of
from tests.fixtures.oip_http import json_body
from tests.fixtures.requests import DENSE, VALUES, random_request
from tests.fixtures.serving import Served
from tests.fixtures.stub_serving import PROBLEM, PROTOBUF, problem
from transports.codecs.oip_protobuf import decode_request, parse_request
from transports.http3.client import Http3Client

pytestmark = pytest.mark.timeout(60)

MIB = 1 << 20


@pytest.fixture
async def wires(served_fake: Served) -> AsyncIterator[dict[str, Asker]]:
    async with every_wire(served_fake) as askers:
        yield askers


@pytest.fixture
async def http(served_fake: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=served_fake.urls["http"], timeout=30) as client:
        yield client


@pytest.fixture
async def http3(served_fake: Served) -> AsyncIterator[Http3Client]:
    port = urlsplit(served_fake.urls["http3"]).port or 0
    async with Http3Client.connect("localhost", port, served_fake.ca) as client:
        yield client


@pytest.fixture
async def channel(served_fake: Served) -> AsyncIterator[grpc.aio.Channel]:
    options = [("grpc.max_send_message_length", -1)]
    target = urlsplit(served_fake.urls["grpc"]).netloc
    async with grpc.aio.insecure_channel(target, options) as opened:
        yield opened


def padded(size_bytes: int) -> bytes:
    """Return a ModelInferRequest of ``size_bytes`` or a little more, with an input too many."""
    return message_of({"padding": np.zeros(size_bytes, np.int8)}).SerializeToString()


@pytest.mark.parametrize("service", ["gRPC predictor", "gRPC OIP"])
async def test_grpc_messages_over_4_mib_are_read_and_those_over_the_limit_told_of_it(
    wires: dict[str, Asker], service: str
) -> None:
    """Field report 36: Triton #1776 #5840."""
    asker = wires[service]
    # Read whole: what it is refused for stands in the message, not in its size.
    read = await asker.ask_bytes(padded(5 * MIB))
    assert read.codes == {Code.INVALID_REQUEST}
    refused = await asker.ask_bytes(padded(64 * MIB))
    assert Code.PAYLOAD_TOO_LARGE in refused.codes
    assert str(64 * MIB) in refused.detail
    assert "max_message_bytes" in refused.detail


def pieces() -> Iterator[bytes]:
    """Yield 65 MiB without saying so before."""
    for _ in range(65):
        yield bytes(MIB)


async def test_a_body_over_the_limit_is_a_413_with_and_without_a_declared_length(
    http: httpx.AsyncClient, http3: Http3Client
) -> None:
    """Field report 37: starlette #2155."""

    async def undeclared() -> AsyncIterator[bytes]:
        for piece in pieces():
            yield piece

    headers = {"content-type": PROTOBUF}
    whole = b"".join(pieces())
    declared = await http.post("/v1/predict", content=whole, headers=headers)
    streamed = await http.post("/v1/predict", content=undeclared(), headers=headers)
    over_quic = await http3.post("/v1/predict", whole, headers)
    for status, body in (
        (declared.status_code, declared.content),
        (streamed.status_code, streamed.content),
        (over_quic.status, over_quic.body),
    ):
        assert status == 413
        assert f"{64 * MIB} bytes (max_request_bytes)" in problem(body, 413)["detail"]


async def test_a_score_of_nan_is_null_in_json_and_passes_as_bits_elsewhere(
    wires: dict[str, Asker], http: httpx.AsyncClient, fake: FakeBackend
) -> None:
    """Field report 38: Triton #3711."""
    request = random_request(fake.spec, 2, seed=1)
    request.inputs[DENSE][0, 0] = np.nan
    outcome = await wires["gRPC OIP"].ask(request)
    scores = np.frombuffer(outcome.scores, np.float32)
    assert np.isnan(scores).tolist() == [True, False]
    for wire in ("gRPC predictor", "HTTP/1.1 protobuf", "HTTP/3 OIP binary"):
        assert (await wires[wire].ask(request)).scores == outcome.scores
    arrays = {name: array for name, array in request.inputs.items() if name != DENSE}
    head = orjson.loads(json_body(arrays))
    raw = request.inputs[DENSE].tobytes()
    head["inputs"].append(
        {
            "name": DENSE, "datatype": "FP32", "shape": [2, 3],
            "parameters": {"binary_data_size": len(raw)},
        }
    )  # fmt: skip
    json = orjson.dumps(head)
    answer = await http.post(
        "/v2/models/fake/infer",
        content=json + raw,
        headers={"inference-header-content-length": str(len(json))},
    )
    first, second = answer.json()["outputs"][0]["data"]
    assert (first, np.float32(second)) == (None, scores[1])


async def test_an_answer_is_raw_bytes_also_where_the_request_was_typed(
    channel: grpc.aio.Channel, fake: FakeBackend
) -> None:
    """Field report 40: Triton #2937 #1665."""
    request = random_request(fake.spec, 3, seed=1)
    message = typed_message_of(request.inputs, model_name="fake")
    answer = await OipClient(channel).call("ModelInfer", message)
    assert len(answer.raw_output_contents) == len(answer.outputs) == 1
    assert not answer.outputs[0].HasField("contents")
    assert np.array_equal(scores_of(answer).ravel(), fake.score(request))


def test_raw_tensors_are_views_of_what_arrived(fake: FakeBackend) -> None:
    """Field report 40: Triton #2937 #1665."""
    request = random_request(fake.spec, 100, seed=1)
    message = parse_request(message_of(request.inputs).SerializeToString())
    decoded = decode_request(message, fake.spec)
    for name in (DENSE, VALUES):
        array = decoded.inputs[name]
        assert not array.flags.owndata
        assert not array.flags.writeable


@pytest.mark.slow
async def test_thousands_of_streams_on_one_http3_connection_leave_nothing_behind(
    tmp_path: Path,
) -> None:
    """Field report 41: aioquic #153 #421 #590 (its 20 MiB: libcurl's tests)."""
    with victim(tmp_path) as process:
        port = urlsplit(process.urls["http3"]).port or 0
        ca = served_by(process.urls, tmp_path).ca
        async with Http3Client.connect("localhost", port, ca) as client:
            for number in range(200):
                if number == 100:  # the allocator has what it takes for 50 at once
                    before = memory_bytes(process)
                answers = await asyncio.gather(*(client.get("/livez") for _ in range(50)))
                assert {answer.status for answer in answers} == {200}
            assert memory_bytes(process) - before < 8 * MIB


async def test_https_tells_browsers_where_http3_is(served_fake: Served, http3: Http3Client) -> None:
    """Field report 42: aioquic #127 #145, hypercorn #56."""
    port = urlsplit(served_fake.urls["http3"]).port
    context = ssl.create_default_context(cafile=served_fake.ca)
    async with httpx.AsyncClient(verify=context, timeout=60) as client:
        answer = await client.get(f"https://localhost:{port}/livez")
    assert answer.headers["alt-svc"].startswith(f'h3=":{port}"')
    assert (await http3.get("/livez")).status == 200


OIP_FAULTS = [
    ("GET", "/v2/models/fake/infer", 405),
    ("POST", "/v2/models/nope/infer", 404),
    ("POST", "/v2/models/fake/infer", 400),
    ("GET", "/v2/models/nope", 404),
    ("GET", "/v2/nothing", 404),
    ("DELETE", "/v2", 405),
]


@pytest.mark.parametrize(("method", "path", "status"), OIP_FAULTS)
async def test_every_oip_error_has_the_one_field_its_clients_read(
    http: httpx.AsyncClient, method: str, path: str, status: int
) -> None:
    """Field report 44: tritonclient reads "error" whatever the status."""
    body = b"{}" if method == "POST" else None
    answer = await http.request(method, path, content=body)
    assert answer.status_code == status
    assert answer.headers["content-type"] == PROBLEM
    assert isinstance(problem(answer.content, status)["error"], str)


async def test_oip_needs_no_content_type_and_says_so_when_it_fails_itself(
    http: httpx.AsyncClient, fake: FakeBackend
) -> None:
    """Field report 44: tritonclient sends none."""
    body = json_body(random_request(fake.spec, 2, seed=1).inputs)
    answer = await http.post("/v2/models/fake/infer", content=body)
    assert "content-type" not in answer.request.headers
    assert answer.status_code == 200

    def fail(_: Batch) -> None:
        raise ServingError(Code.INTERNAL, "because")

    fake.before_run = fail
    answer = await http.post("/v2/models/fake/infer", content=body)
    assert problem(answer.content, 500)["error"] == "because"
