"""Plain grpcio with stubs made from our proto files, and TorchRec's published client on them."""

import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.engine import Engine
from scheduler.observer import Observer
from scheduler.options import SchedulerOptions
from scheduler.types import InferRequest
from tests.clients import tools
from tests.fixtures.grpc_calls import grpc_client
from tests.fixtures.requests import DENSE, LENGTHS, VALUES
from transports.statistics import Statistics

pytestmark = pytest.mark.clients

HERE = Path(__file__).parent
PROTO = HERE.parents[1] / "transports" / "proto"
REQUESTS_PAGE = HERE.parents[1] / "docs" / "requests.md"
SCORES = [25.0, 61.0]


@asynccontextmanager
async def served(backend: FakeBackend) -> AsyncIterator[int]:
    """Yield the port of a gRPC server."""
    engine = Engine(SchedulerOptions(), Statistics(Observer()))
    await engine.load(backend)
    engine.open()
    async with grpc_client(engine) as (client, _):
        yield client.port
    await engine.close(0)


async def make_stubs(interpreter: str | Path, folder: Path) -> None:
    """Generate stubs of both protocols in ``folder``, as docs/requests.md tells users to."""
    await tools.run(
        interpreter, "-m", "grpc_tools.protoc", f"-I{PROTO}", "--python_out=.",
        "--grpc_python_out=.", "predictor.proto", "open_inference.proto", folder=folder,
    )  # fmt: skip


async def run_script(
    interpreter: str | Path, name: Path, folder: Path, argument: object
) -> dict[str, Any]:
    output = await tools.run(
        "env", f"PYTHONPATH={folder}", str(interpreter), name, str(argument), folder=folder
    )
    answers: dict[str, Any] = json.loads(output)
    return answers


async def test_stubs_of_another_protobuf_than_ours_are_served(tmp_path: Path) -> None:
    python = tools.python()
    await make_stubs(python, tmp_path)
    async with served(FakeBackend(FakeOptions())) as port:
        answers = await run_script(python, HERE / "grpcio_stubs.py", tmp_path, f"127.0.0.1:{port}")
    for name in ("int32", "int64", "raw", "typed"):
        assert answers[name] == SCORES, name
    assert answers["stream"] == [SCORES, SCORES]
    assert answers["versions"][1].split(".")[0] == "7"
    described = answers["described"]
    assert described["live"] == {"live": True}
    assert described["ready"] == described["model_ready"] == {"ready": True}
    assert described["server"]["name"] == "narsil"
    assert described["model"]["name"] == described["config"]["config"]["name"] == "fake"
    assert described["statistics"]["modelStats"][0]["inferenceStats"]["success"]["count"]
    assert described["index"]["models"][0]["state"] == "READY"


async def test_the_pages_own_client_prints_scores(tmp_path: Path) -> None:
    python = tools.python()
    await make_stubs(python, tmp_path)
    (example,) = re.findall(r"^```python\n(.*?)^```$", REQUESTS_PAGE.read_text(), re.M | re.S)
    backend = FakeBackend(FakeOptions(dense_features=13, sparse_features=26))
    async with served(backend) as port:
        source = example.replace("127.0.0.1:50051", f"127.0.0.1:{port}")
        output = await tools.run(python, "-c", source, folder=tmp_path)
    assert json.loads(output) == [0.0, 0.0]


async def test_torchrecs_published_client_works_as_it_is(tmp_path: Path) -> None:
    pytest.importorskip("torchrec", reason="make test installs it")
    await make_stubs(sys.executable, tmp_path)
    backend = FakeBackend(FakeOptions(dense_features=13, sparse_features=26))
    async with served(backend) as port:
        answers = await run_script(sys.executable, HERE / "torchrec_client.py", tmp_path, port)
    found = re.search(r"Response: +\[(.*)\]", answers["published"])
    assert found is not None
    assert len(found[1].split(",")) == 7
    tensors = answers["tensors"]
    inputs = {
        DENSE: np.array(tensors["dense"], np.float32),
        LENGTHS: np.array(tensors["lengths"]),
        VALUES: np.array(tensors["values"]),
    }
    expected = backend.score(InferRequest("fake", 7, inputs)).tolist()
    assert answers["scores"] == {"torch.int32": expected, "torch.int64": expected}
