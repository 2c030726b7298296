"""The load generator: it sends what it says, and counts what comes back."""

import json
import socket
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from backends.fake import FakeBackend
from loadtest import clients, closed, command, workload
from scheduler.types import Batch
from tests.fixtures.serving import serving
from transports.codecs import predict_json, predictor


@pytest.fixture
def shape() -> workload.ModelShape:
    return workload.ModelShape(3, ("cat_0", "cat_1"), (1000, 1000))


def test_both_encodings_carry_the_same_seeded_requests(shape: workload.ModelShape) -> None:
    spec = FakeBackend(FakeBackend.Options()).spec
    bodies = {
        encoding: workload.make_bodies(shape, 4, 5, seed=7, encoding=encoding)
        for encoding in ("json", "protobuf")
    }
    assert len(set(bodies["protobuf"])) == 5
    for text, message in zip(bodies["json"], bodies["protobuf"], strict=True):
        decoded = predict_json.decode_request(text, spec), predictor.decode_request(message, "")
        for name, array in decoded[0].inputs.items():
            np.testing.assert_array_equal(array, decoded[1].inputs[name])


@pytest.mark.parametrize("wire", ["grpc", "http", "http-json", "http3"])
async def test_every_answer_in_the_window_is_counted(
    wire: str, shape: workload.ModelShape, certificates: Path
) -> None:
    backend = FakeBackend(FakeBackend.Options())
    encoding: workload.Encoding = "json" if wire == "http-json" else "protobuf"
    bodies = workload.make_bodies(shape, 2, 10, seed=1, encoding=encoding)
    media_type = "application/json" if encoding == "json" else "application/x-protobuf"
    async with serving(backend, certificates) as served:
        url = served.urls[wire.partition("-")[0]].replace("https://127.0.0.1", "https://localhost")
        async with clients.connect(url, 3, media_type, served.ca) as senders:
            result = await closed.run(senders, bodies, warmup_s=0.0, measure_s=0.2)
    assert result.errors == 0
    assert len(result.latencies_s) == sum(len(batch.requests) for batch in backend.batches)
    assert result.summary(2)["samples_per_s"] == pytest.approx(
        2 * result.summary(2)["requests_per_s"], rel=0.01
    )


async def test_errors_are_counted_beside_the_latencies(
    shape: workload.ModelShape, certificates: Path
) -> None:
    backend = FakeBackend(FakeBackend.Options())

    def fail(batch: Batch) -> None:
        raise RuntimeError("no")

    backend.before_run = fail
    bodies = workload.make_bodies(shape, 2, 10, seed=1, encoding="protobuf")
    async with serving(backend, certificates) as served:
        url = f"grpc://{urlsplit(served.urls['grpc']).netloc}"
        async with clients.connect(url, 2, "", served.ca) as senders:
            result = await closed.run(senders, bodies, warmup_s=0.0, measure_s=0.05)
    assert result.errors > 0
    assert result.summary(2) == {"requests": 0, "errors": result.errors}


def test_the_bare_forward_needs_no_server(
    small_artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--wire", "bare", "--rows", "1,3", "--seconds", "0.05"]
    assert command.main([str(small_artifact), *arguments]) == 0
    head, *lines = map(json.loads, capsys.readouterr().out.splitlines())
    assert head["machine"]["cpus"] > 0
    assert [(line["wire"], line["rows"]) for line in lines] == [("bare", 1), ("bare", 3)]
    assert all(line["requests"] > 0 for line in lines)


@pytest.mark.parametrize(
    ("wires", "url"),
    [
        ("http,grpc", "http://127.0.0.1:1"),
        ("http3", "http://127.0.0.1:1"),
        ("grpc", "127.0.0.1:1"),
        ("http", "http://127.0.0.1:x"),
    ],
)
def test_a_url_that_does_not_fit_the_wire_is_refused(
    wires: str, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        command.main(["unused", "--wire", wires, "--url", url])
    assert stopped.value.code == 2
    assert "://HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize(("wire", "scheme"), [("grpc", "grpc"), ("http", "http")])
def test_a_run_without_a_server_ends_with_one_sentence(
    wire: str, scheme: str, small_artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as bound_but_deaf:
        bound_but_deaf.bind(("127.0.0.1", 0))
        url = f"{scheme}://127.0.0.1:{bound_but_deaf.getsockname()[1]}"
        assert command.main([str(small_artifact), "--wire", wire, "--url", url]) == 1
    assert capsys.readouterr().err.startswith(f"narsil bench: cannot connect to {url}: ")


async def test_a_missing_ca_is_named(tmp_path: Path) -> None:
    with pytest.raises(closed.NoServerError, match="not found"):
        async with clients.connect("https://localhost:1", 1, "", tmp_path / "gone.pem"):
            pass


@pytest.mark.parametrize("transport", ["grpc", "http", "http3"])
async def test_a_connection_lost_in_the_run_ends_it(
    transport: str, shape: workload.ModelShape, certificates: Path
) -> None:
    bodies = workload.make_bodies(shape, 2, 10, seed=1, encoding="protobuf")
    async with AsyncExitStack() as stack:
        async with serving(FakeBackend(FakeBackend.Options()), certificates) as served:
            url = served.urls[transport].replace("https://127.0.0.1", "https://localhost")
            senders = await stack.enter_async_context(
                clients.connect(url, 2, "application/x-protobuf", served.ca)
            )
        with pytest.raises(closed.NoServerError, match="connection lost"):
            await closed.run(senders, bodies, warmup_s=0.0, measure_s=60.0)


@pytest.mark.parametrize(
    ("transport", "status"), [("grpc", "INVALID_ARGUMENT"), ("http", "400"), ("http3", "400")]
)
async def test_failures_are_counted_by_status_and_the_first_is_quoted(
    transport: str, status: str, certificates: Path
) -> None:
    async with serving(FakeBackend(FakeBackend.Options()), certificates) as served:
        url = served.urls[transport].replace("https://127.0.0.1", "https://localhost")
        async with clients.connect(url, 2, "application/x-protobuf", served.ca) as senders:
            result = await closed.run(senders, [b"\xff"], warmup_s=0.0, measure_s=0.05)
    assert result.failures.counts == {status: result.errors}
    assert result.failures.first.startswith(f"{status}: body is not a predictor.PredictionRequest")
    assert result.failures.first in str(result.failures)
