"""``narsil serve --repository``: a folder that is followed, and models that clients load."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from backends.fake import FakeBackend
from tests.e2e.clients import until
from tests.e2e.process import narsil_serve
from tests.fixtures.requests import as_json, random_request

FAKE = FakeBackend(FakeBackend.Options())
REQUEST = random_request(FAKE.spec, 2, seed=1)
SCORES = np.asarray(FAKE.score(REQUEST), np.float32)
CONFIG = """
backend = "fake"
[versions]
latest = 2
[labels]
stable = 1
canary = "latest"
[split]
stable = 50
canary = 50
"""
POLLED = [
    "--repository-mode=poll", "--repository-poll-s=0.05", "--repository-settle-s=0.02",
    "--server-drain-delay-s=0", "--server-model-control=true", "--http-metrics=true",
]  # fmt: skip


def make_version(folder: Path, off: float = 0.0) -> None:
    """Make a version of the fake backend with a golden batch, complete when it has its name."""
    making = folder.with_name(f"{folder.name}.tmp")
    making.mkdir(parents=True)
    arrays: dict[str, Any] = {**REQUEST.inputs, "int8.default": np.add(SCORES, np.float32(off))}
    np.savez(making / "golden.npz", **arrays)
    making.rename(folder)


async def index(client: httpx.AsyncClient) -> dict[str, str]:
    """Return why each version is not what it should be, by version; "" for what is well."""
    rows = (await client.post("/v2/repository/index")).json()
    return {row["version"]: row["reason"] for row in rows}


async def answered_by(client: httpx.AsyncClient, version: str = "", key: str = "") -> str:
    """Return the version that answers."""
    path = f"/v1/models/ranking/versions/{version}/predict" if version else "/v1/predict"
    body = as_json(REQUEST, FAKE.spec)
    answer = await client.post(path, content=body, headers={"x-request-key": key} if key else {})
    assert answer.status_code == 200, answer.text
    np.testing.assert_allclose(answer.json()["predictions"]["default"], SCORES)
    return str(answer.json()["version"])


async def test_versions_come_by_a_rename_are_labelled_shared_and_proven_and_may_vanish(
    tmp_path: Path,
) -> None:
    root = tmp_path / "models"
    make_version(root / "ranking" / "1")
    (root / "ranking" / "config.toml").write_text(CONFIG)
    with narsil_serve(tmp_path, ["--repository=models", *POLLED], ("http", "admin")) as process:
        async with httpx.AsyncClient(base_url=process.urls["http"], timeout=60) as client:
            assert await answered_by(client, "canary") == "1"
            make_version(root / "ranking" / "2")
            await until(lambda: holds(client, {"1": "", "2": ""}))
            assert [await answered_by(client, name) for name in ("stable", "canary")] == ["1", "2"]
            chosen = [await answered_by(client, key=f"{number}") for number in range(10)]
            assert {*chosen} == {"1", "2"}
            assert [await answered_by(client, key=f"{number}") for number in range(10)] == chosen
            make_version(root / "ranking" / "3", off=1.0)
            await until(lambda: says(client, "3", "differ by 1 from golden.npz"))
            assert await answered_by(client, "canary") == "2"
            load = await client.post("/v2/repository/models/ranking/load")
            assert (load.status_code, "repository.mode is poll" in load.text) == (501, True)
            root.rename(tmp_path / "gone")
            await until(lambda: shows(client, "narsil_repository_reachable 0.0"))
            assert await answered_by(client, "stable") == "1"
        process.terminate()
        code, log = await asyncio.to_thread(process.wait)
    assert code == 0, log
    assert log.count("differ by 1 from golden.npz") == 1
    assert log.count("cannot be read") == 1
    assert "Traceback" not in log


async def holds(client: httpx.AsyncClient, expected: dict[str, str]) -> bool:
    return await index(client) == expected


async def says(client: httpx.AsyncClient, version: str, words: str) -> bool:
    return words in (await index(client)).get(version, "")


async def shows(client: httpx.AsyncClient, metric: str) -> bool:
    return metric in (await client.get("/metrics")).text


@pytest.mark.slow
async def test_artifacts_of_a_repository_are_loaded_and_swapped_as_a_client_says(
    small_artifact: Path, tmp_path: Path
) -> None:
    versions = tmp_path / "models" / "small"
    shutil.copytree(small_artifact, versions / "1")
    arguments = ["--repository=models", "--repository-mode=explicit", "--server-drain-delay-s=0"]
    arguments += ["--server-model-control=true", "--repository-load=small"]
    with narsil_serve(tmp_path, arguments, ("http", "admin")) as process:
        assert "small version 1" in process.banner
        async with httpx.AsyncClient(base_url=process.urls["http"], timeout=60) as client:
            example = (versions / "1" / "example.json").read_bytes()
            before = (await client.post("/v1/predict", content=example)).json()
            assert before["version"] == "1"
            shutil.copytree(small_artifact, versions / "2")
            model = versions / "2" / "model.pt"
            model.write_bytes(model.read_bytes()[:-1000])
            load = await client.post("/v2/repository/models/small/load")
            assert (load.status_code, "SHA-256" in load.text) == (500, True)
            shutil.copy(small_artifact / "model.pt", model)
            load = await client.post("/v2/repository/models/small/load")
            assert load.status_code == 200, load.text
            after = (await client.post("/v1/predict", content=example)).json()
            assert (after["model"], after["version"]) == ("small", "2")
            np.testing.assert_array_equal(
                before["predictions"]["default"], after["predictions"]["default"]
            )
        process.terminate()
        code, log = await asyncio.to_thread(process.wait)
    assert code == 0, log
    assert "Traceback" not in log
