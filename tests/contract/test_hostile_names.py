"""Names of models that would lead out of the repository, over every wire."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import grpc.aio
import pytest
import pytest_asyncio

from app.observe import PrometheusObserver
from app.repository.places import place_of
from app.repository.repository import Repository
from app.resolve import resolve
from backends.fake import FakeBackend, FakeOptions
from scheduler.routing import Routes
from tests.fixtures.behind_front_ends import MakeFrontEnds
from tests.fixtures.oip_grpc import SERVICE as OIP
from tests.fixtures.raw_http import raw
from tests.fixtures.serving import Served, serving
from transports.http3.client import Http3Client
from transports.proto import open_inference_pb2 as oip

# Beside the repository lies what would load, if a name could lead there.
NAMES = (
    "../outside", "..", ".", "m/../../outside", "/outside", "//outside", "..\\outside", "m/1",
    "%2e%2e%2foutside", "..;/outside", "m\0", "m\n", "~root", "$HOME", "outside/", "." * 4000,
    "m" * 4000, "c:outside", "file:outside", "-m", "m\u202e", "\u2024\u2024/outside",
)  # fmt: skip
module = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(
    certificates: Path, front_ends: MakeFrontEnds, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Served]:
    """A server whose clients may load models from a repository."""
    home = tmp_path_factory.mktemp("home")
    for folder in ("repository/m/1", "outside/1"):
        (home / folder).mkdir(parents=True)
        (home / folder / "manifest.json").write_text("{}")
    flags = ["--backend=fake", "--repository", str(home / "repository")]
    config, _ = resolve([*flags, "--repository-mode=explicit"])
    options = config.repository.options
    fake, far = FakeBackend(FakeOptions(name="here")), front_ends()
    async with serving(fake, certificates, front_ends=far) as running:
        engine, observer = running.engine, PrometheusObserver()
        repository = Repository(engine, place_of(options), options, config.planner, observer, 1.0)
        await repository.start()
        engine.control = repository
        engine.route("here", Routes())  # whoever watches looks again
        await running.settled()
        yield running


def only_what_may_be(served: Served) -> bool:
    return {spec.name for spec in served.engine.specs()} <= {"here", "m"}


PATHS = (
    "/v2/repository/models/{}/load", "/v2/repository/models/{}/unload", "/v2/models/{}/infer",
    "/v1/models/{}/predict", "/v2/models/{}/versions/{}/infer",
)  # fmt: skip
REFUSED = {400, 404, 405}


@module
@pytest.mark.parametrize("path", PATHS)
async def test_over_http_they_are_refused_in_a_path_as_it_is_and_escaped(
    served: Served, path: str
) -> None:
    async with Http3Client.connect(
        "localhost", urlsplit(served.urls["http3"]).port or 0, served.ca
    ) as http3:
        for name in NAMES:
            for written in {quote(name, safe=""), quote(name, safe="/."), quote(quote(name, ""))}:
                target = path.format(*[written] * path.count("{}"))
                async with raw(served.urls["http"]) as connection:
                    head = f"POST {target} HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n"
                    await connection.send(head.encode("latin-1"), b"{}")
                    assert (await connection.answer()).status in REFUSED, target
                assert (await http3.post(target, b"{}", {})).status in REFUSED, target
    assert only_what_may_be(served)


@module
@pytest.mark.parametrize("name", ["grpc", "grpc-grpcio"])
@pytest.mark.parametrize("method", ["RepositoryModelLoad", "RepositoryModelUnload", "ModelInfer"])
async def test_over_grpc_they_are_refused(served: Served, name: str, method: str) -> None:
    make: Any = getattr(oip, f"{method}Request")
    async with grpc.aio.insecure_channel(urlsplit(served.urls[name]).netloc) as channel:
        call = channel.unary_unary(f"/{OIP}/{method}")
        for hostile in NAMES:
            message = make(model_name=hostile).SerializeToString()
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await call(message, timeout=20)
            assert refusal.value.code() in {
                grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT,
            }, (hostile, refusal.value)  # fmt: skip
        if method == "RepositoryModelLoad":  # and a name that is none leads where it says
            await call(make(model_name="m").SerializeToString(), timeout=20)
    assert only_what_may_be(served)


@module
@pytest.mark.parametrize("name", ["grpc", "grpc-grpcio"])
async def test_in_the_metadata_of_predict_they_are_refused(served: Served, name: str) -> None:
    async with grpc.aio.insecure_channel(urlsplit(served.urls[name]).netloc) as channel:
        call = channel.unary_unary("/predictor.Predictor/Predict")
        for hostile in NAMES:
            if hostile.isprintable() and hostile.isascii():
                with pytest.raises(grpc.aio.AioRpcError) as refusal:
                    await call(b"", metadata=(("narsil-model", hostile),), timeout=20)
                assert refusal.value.code() is grpc.StatusCode.NOT_FOUND
