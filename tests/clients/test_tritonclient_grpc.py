"""``tritonclient[grpc]`` asks; ``tritonclient_grpc.py`` says why in a process of its own."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.fake import FakeBackend
from tests.fixtures.gates import make_request
from tests.fixtures.grpc_calls import grpc_client
from tests.fixtures.requests import DENSE, LENGTHS, VALUES
from tests.fixtures.stock import Stock, Version, stocked

pytest.importorskip("tritonclient")

SCRIPT = Path(__file__).with_name("tritonclient_grpc.py")
ROWS = 4


async def answers_of_the_client(address: str) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, SCRIPT, address, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    answers: dict[str, Any] = json.loads(output)
    return answers


def scores(backend: FakeBackend, seed: int) -> list[list[float]]:
    """Return what the script's request of ``seed`` scores, as Triton's clients shape it."""
    inputs = {
        DENSE: np.full((ROWS, 3), seed, np.float32),
        LENGTHS: np.ones((2, ROWS), np.int64),
        VALUES: np.arange(ROWS * 2).reshape(ROWS, 2).T.ravel(),
    }
    column: list[list[float]] = (
        backend.score(make_request(ROWS, inputs=inputs)).reshape(-1, 1).tolist()
    )
    return column


async def test_tritonclient_works_as_it_is_over_grpc() -> None:
    backend = Version("1")
    async with (
        stocked({backend: Stock([Version("2")])}) as state,
        grpc_client(state.engine) as (client, _),
    ):
        state.engine.control = state.repository
        answers = await answers_of_the_client(f"127.0.0.1:{client.port}")
    check_descriptions(answers["sync"])
    check_scores(answers["sync"], backend)
    check_statistics(answers["sync"]["statistics"]["model_stats"][0])
    assert answers["unloaded"] == {"answer": "answered", "ready": False, "versions": [""]}
    assert answers["loaded"] == {"answer": "answered", "ready": True, "versions": ["2"]}
    assert answers["unknown"] == "StatusCode.NOT_FOUND"
    assert set(answers["sync"]["refused"].values()) == {"StatusCode.UNIMPLEMENTED"}
    aio = answers["aio"]
    assert aio["ready"] == [True, True, True]
    for name in ("server", "model", "config", "index", "refused"):
        assert aio[name] == answers["sync"][name]
    check_statistics(aio["statistics"]["model_stats"][0])
    assert aio["infer"] == scores(backend, 1)
    assert aio["stream"] == [scores(backend, 0), scores(backend, 1)]


def check_descriptions(answers: dict[str, Any]) -> None:
    assert answers["live"] is answers["ready"] is True
    assert answers["models_ready"] == [True, False]
    assert answers["server"]["name"] == "narsil"
    assert {"statistics", "model_repository"} <= set(answers["server"]["extensions"])
    shapes = {tensor["name"]: tensor["shape"] for tensor in answers["model"]["inputs"]}
    assert shapes == {"float_features": ["-1", "3"], "id_list_features": ["-1", "2"]}
    assert answers["config"]["max_batch_size"] == 16384
    assert "dynamic_batching" in answers["config"]
    assert answers["index"]["models"] == [{"name": "fake", "version": "1", "state": "READY"}]


def check_scores(answers: dict[str, Any], backend: FakeBackend) -> None:
    assert answers["infer"] == {"scores": scores(backend, 1), "id": "my id"}
    assert answers["async"] == scores(backend, 2)
    first, wrong, last = answers["stream"]
    assert first == scores(backend, 0)
    assert "id 5000" in wrong
    assert last == scores(backend, 2)


def check_statistics(figures: dict[str, Any]) -> None:
    assert int(figures["inference_count"]) == 4 * ROWS
    assert int(figures["execution_count"]) <= 4
    assert int(figures["inference_stats"]["success"]["count"]) == 4
    assert int(figures["inference_stats"]["fail"]["count"]) == 1
