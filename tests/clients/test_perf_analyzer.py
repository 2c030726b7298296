"""NVIDIA's perf_analyzer, unmodified, with the rows that ``narsil perf-data`` writes."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import orjson
import pytest

from backends.fake import FakeBackend, FakeOptions
from loadtest.perf_data import DENSE, IDS, perf_document
from loadtest.workload import ModelShape
from scheduler.types import Array, InferRequest
from tests.clients import tools
from tests.fixtures.grpc_calls import grpc_client
from tests.fixtures.oip_http import oip_served
from tests.fixtures.requests import LENGTHS, VALUES, features
from transports.statistics import ModelFigures, statistics_of

pytestmark = pytest.mark.clients

SCRIPT = Path(__file__).with_name("perf_analyzer.sh")
SAMPLES, REQUESTS = 2000, 120
JSON = ("--input-tensor-format=json", "--output-tensor-format=json")


def backend() -> FakeBackend:
    return FakeBackend(FakeOptions(dense_features=13, sparse_features=26))


def document() -> dict[str, Any]:
    names = features(backend().spec)
    shape = ModelShape(13, names, (1000,) * len(names))
    return perf_document(shape, SAMPLES, np.random.default_rng(0))


def scored(rows: dict[str, Any]) -> dict[str, Any]:
    """Return ``rows`` with the scores that perf_analyzer is to compare."""
    dense = np.array([row[DENSE]["content"] for row in rows["data"]], np.float32)
    ids = np.array([row[IDS]["content"] for row in rows["data"]])
    ones: Array = np.ones(ids.T.shape, np.int64)
    inputs: dict[str, Array] = {DENSE: dense, LENGTHS: ones, VALUES: ids.T.ravel()}
    scores = backend().score(InferRequest("fake", len(dense), inputs))
    expected = [{"default": {"content": [score], "shape": [1]}} for score in scores.tolist()]
    return {**rows, "validation_data": expected}


async def measured(folder: Path, protocol: str, rows: dict[str, Any], *options: str) -> "Measured":
    tools.program("perf_analyzer")
    (folder / "data.json").write_bytes(orjson.dumps(rows))
    scorer = backend()
    async with oip_served(scorer) as served, grpc_client(served.engine) as (client, _):
        address = urlsplit(served.url).netloc if protocol == "http" else f"127.0.0.1:{client.port}"
        output = await tools.run(
            SCRIPT, protocol, address, "fake", folder / "data.json",
            f"--request-count={REQUESTS}", *options,
        )  # fmt: skip
        counted = statistics_of(served.engine)
        assert counted is not None
        return Measured(output, counted.of("fake", "1"), scorer)


class Measured:
    """What the client reported, and what the server counted and scored."""

    def __init__(self, output: str, figures: ModelFigures, scorer: FakeBackend) -> None:
        self.output = output
        self.figures = figures
        self.scorer = scorer

    def reported(self, name: str) -> int:
        """Return a number of the report."""
        found = re.search(rf"^ +{name}: (\d+)", self.output, re.MULTILINE)
        assert found is not None, self.output
        return int(found[1])


@pytest.mark.parametrize(
    ("protocol", "options"),
    [
        ("grpc", ()), ("grpc", ("-a",)), ("grpc", ("-a", "--streaming")),
        ("http", ()), ("http", JSON),
    ],
    ids=["grpc", "grpc async", "grpc stream", "http", "http json"],
)  # fmt: skip
async def test_perf_analyzer_measures_and_reads_the_servers_own_figures(
    tmp_path: Path, protocol: str, options: tuple[str, ...]
) -> None:
    seen = await measured(tmp_path, protocol, document(), "-b10", "--concurrency-range=4", *options)
    assert seen.reported("Request count") == REQUESTS
    # It asks for the figures while its last requests are still being answered.
    assert REQUESTS - 4 <= seen.reported("Successful request count") <= REQUESTS
    assert seen.reported("Execution count") > 0
    assert re.search(r"queue \d+ usec \+ compute input \d+ usec \+ compute infer", seen.output)
    assert (seen.figures.success.count, seen.figures.fail.count) == (REQUESTS, 0)
    dense = np.concatenate(
        [request.inputs[DENSE] for batch in seen.scorer.batches for request in batch.requests]
    )
    assert len(np.unique(dense, axis=0)) > SAMPLES / 2


@pytest.mark.parametrize("protocol", ["grpc", "http"])
async def test_perf_analyzer_finds_the_scores_right(tmp_path: Path, protocol: str) -> None:
    seen = await measured(tmp_path, protocol, scored(document()), "--concurrency-range=1")
    assert seen.reported("Request count") == REQUESTS


async def test_perf_analyzer_would_have_found_them_wrong(tmp_path: Path) -> None:
    wrong = scored(document())
    wrong["validation_data"][7]["default"]["content"] = [-1.0]
    with pytest.raises(AssertionError, match=r"doesn.t match expected output"):
        await measured(tmp_path, "grpc", wrong, "--concurrency-range=1")
