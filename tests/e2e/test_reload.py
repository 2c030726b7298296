"""SIGHUP: every model is built anew from its files and takes over while requests flow."""

import asyncio
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import numpy as np
import pytest

from backends.torch_dlrm.backend import TorchDlrmBackend
from backends.torch_dlrm.export.presets import PRESETS
from backends.torch_dlrm.export.quiet import quiet
from scheduler.types import Array, Batch, InferRequest
from tests.e2e.clients import load, served_by, until
from tests.e2e.process import Process, narsil_serve
from tests.fixtures.artifacts import load as load_artifact
from tests.fixtures.requests import as_json, as_protobuf, random_request
from tests.fixtures.scores import TOLERANCE
from tests.fixtures.serving import Served
from tests.fixtures.wires import Answer, connect

CLIENTS = ("grpc", "grpc", "http-json", "http-protobuf", "http3-protobuf")


@pytest.fixture(scope="module")
def retrained_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``small_artifact`` with other weights, as version 2."""
    folder = tmp_path_factory.mktemp("retrained") / "small"
    with quiet():
        # Importing TorchRec warns, and here a warning is an error.
        from backends.torch_dlrm.export.write import Order, export  # noqa: PLC0415

        order = Order(folder, PRESETS["small"], name="retrained", version="2", seed=1)
        export(order, lambda text: None)
    return folder


@dataclass(frozen=True)
class Truth:
    """What each model answers to each of ``requests``, by the request's id."""

    requests: list[InferRequest]
    old: Mapping[str, Array]
    new: Mapping[str, Array]

    def is_old(self, request: InferRequest, answer: Answer) -> bool:
        """Return whether ``answer`` is the old model's."""
        return np.allclose(answer.scores["default"], self.old[request.id], rtol=0, atol=TOLERANCE)

    def is_new(self, request: InferRequest, answer: Answer) -> bool:
        """Return whether ``answer`` is the new model's."""
        return np.allclose(answer.scores["default"], self.new[request.id], rtol=0, atol=TOLERANCE)


@pytest.fixture(scope="module")
def truth(small_backend: TorchDlrmBackend, retrained_artifact: Path) -> Truth:
    """Some requests and their scores by both models, which differ."""
    spec = small_backend.spec
    requests = [
        replace(random_request(spec, rows=1 + seed % 7, seed=seed), id=str(seed))
        for seed in range(40)
    ]
    retrained = load_artifact(retrained_artifact)
    old, new = (
        {request.id: backend.prepare(Batch((request,)))()["default"] for request in requests}
        for backend in (small_backend, retrained)
    )
    assert not any(np.allclose(old[name], new[name], rtol=0, atol=0.001) for name in old)
    return Truth(requests, old, new)


@pytest.fixture
def folder(small_artifact: Path, tmp_path: Path) -> Path:
    """A copy of ``small_artifact`` to change."""
    return shutil.copytree(small_artifact, tmp_path / "model")


async def logged(process: Process, text: str, count: int) -> bool:
    return process.log.count(text) >= count


async def hang_up(process: Process, text: str) -> None:
    """Send SIGHUP and wait until ``text`` is logged once more."""
    count = process.log.count(text) + 1
    process.hang_up()
    await until(lambda: logged(process, text, count))


async def ask_once(served: Served, name: str, request: InferRequest) -> Answer:
    async with connect(name, served) as wire:
        body = as_json(request, served.backend.spec) if wire.json else as_protobuf(request)
        return await wire.send(body)


async def test_reloads_under_load_fail_no_request_and_new_files_give_new_scores(
    folder: Path, retrained_artifact: Path, small_backend: TorchDlrmBackend, truth: Truth
) -> None:
    with narsil_serve(folder.parent, [str(folder), "--backend-max-batch-rows=128"]) as process:
        served = served_by(process.urls, folder.parent)
        stop = asyncio.Event()

        async def client(name: str) -> list[tuple[InferRequest, Answer]]:
            async with connect(name, served) as wire:
                return await load(wire, small_backend.spec, truth.requests, stop)

        async with asyncio.TaskGroup() as group:
            loads = [group.create_task(client(name)) for name in CLIENTS]
            await hang_up(process, "small: reloaded, version 1 -> 1 in ")
            await hang_up(process, "small: reloaded, version 1 -> 1 in ")
            shutil.rmtree(folder)
            shutil.copytree(retrained_artifact, folder)
            await hang_up(process, "small: reloaded, version 1 -> 2 in ")
            last = [
                await ask_once(served, name, truth.requests[0])
                for name in ("grpc", "http-protobuf")
            ]
            stop.set()
        async with httpx.AsyncClient(base_url=process.urls["admin"], timeout=60) as probe:
            metrics = (await probe.get("/metrics")).text
    for answer in last:
        assert truth.is_new(truth.requests[0], answer)
    for answers in (done.result() for done in loads):
        for request, answer in answers:
            assert not answer.codes, answer.detail
            assert truth.is_old(request, answer) or truth.is_new(request, answer)
        # One client's requests come one after another: once new, always new.
        news = [truth.is_new(*pair) for pair in answers]
        assert news == sorted(news)
        assert not news[0]
    infos = [line for line in metrics.splitlines() if line.startswith("narsil_model_info{")]
    assert infos == ['narsil_model_info{model="small",version="2"} 1.0']
    plan = next(line for line in metrics.splitlines() if line.startswith("narsil_model_plan{"))
    assert plan in {
        f'narsil_model_plan{{model="small",plan="{name}",version="2"}} 1.0'
        for name in ("fused", "lean")
    }


async def test_files_that_do_not_load_are_reported_and_the_old_model_serves_on(
    folder: Path, truth: Truth
) -> None:
    with narsil_serve(folder.parent, [str(folder), "--backend-max-batch-rows=128"]) as process:
        served = served_by(process.urls, folder.parent)
        (folder / "model.pt").write_bytes(b"half a file")
        await hang_up(process, "small: not reloaded, version 1 serves on: ")
        for name in ("grpc", "http-protobuf"):
            answer = await ask_once(served, name, truth.requests[0])
            assert truth.is_old(truth.requests[0], answer)
        async with httpx.AsyncClient(base_url=process.urls["admin"], timeout=60) as probe:
            assert (await probe.get("/readyz")).status_code == 200
        process.terminate()
    assert "ERROR app.configured: small: not reloaded" in process.log
    assert "SHA-256" in process.log
    assert "Traceback" not in process.log


async def test_sigterm_while_a_model_is_reloaded_exits_zero(folder: Path) -> None:
    arguments = [str(folder), "--server-drain-delay-s=0"]
    with narsil_serve(folder.parent, arguments) as process:
        await hang_up(process, "small: reloading")
        process.terminate()
        code, log = await asyncio.to_thread(process.wait)
    assert code == 0, log
    assert "small: reloaded" not in log
    assert "Traceback" not in log
