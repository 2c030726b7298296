"""Several models behind one server, each with settings of its own."""

import asyncio
import subprocess
from pathlib import Path

import httpx
import pytest

from backends.fake import FakeBackend
from scheduler.errors import Code
from tests.e2e.clients import ask, served_by, until
from tests.e2e.pasted import check_lines
from tests.e2e.process import ANY_PORTS, NARSIL, TRANSPORTS, narsil_serve
from tests.fixtures.requests import random_request
from tests.fixtures.scores import assert_same_scores
from tests.fixtures.wires import WIRES

MODELS = """
[server]
backend = "fake"
drain_delay_s = 0
model_control = true
[models.ranking]
[models.ranking.scheduler]
mode = "inline"
[models.ads]
lanes = 2
[models.ads.scheduler]
mode = "worker"
[models.feed]
max_batch_rows = 64
[models.feed.scheduler]
max_batch_ids = 500
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "narsil.toml"
    path.write_text(MODELS)
    return path


async def test_each_model_answers_by_its_name_in_its_own_mode_over_every_wire(
    tmp_path: Path, file: Path
) -> None:
    with narsil_serve(tmp_path, [f"--config={file}"]) as process:
        served = served_by(process.urls, tmp_path)
        fake = FakeBackend(FakeBackend.Options())
        expected = fake.score(random_request(fake.spec, 2, seed=1))
        for model in ("ranking", "ads", "feed"):
            for wire in WIRES:
                (answer,) = await ask(served, wire, 1, model)
                assert not answer.codes, answer.detail
                assert_same_scores(answer.scores["default"], expected)
        async with httpx.AsyncClient(base_url=process.urls["admin"], timeout=60) as probe:
            assert (await probe.post("/v2/repository/models/ads/load")).status_code == 200
            metrics = (await probe.get("/metrics")).text
            ranking, feed = [
                (await probe.get(f"/v1/models/{model}")).json()["properties"]
                for model in ("ranking", "feed")
            ]
    for model in ("ranking", "ads", "feed"):
        assert f'narsil_batch_requests_sum{{model="{model}"}} {len(WIRES)}.0' in metrics
        assert f'narsil_model_info{{model="{model}",version="1"}} 1.0' in metrics
    assert 'narsil_model_reloads_total{model="ads",outcome="ok"} 1.0' in metrics
    assert "ads: reloaded, version 1 -> 1 in " in process.log
    assert ranking["scheduler.mode"] == "inline"
    assert (feed["scheduler.mode"], feed["scheduler.max_batch_ids"]) == ("batch", "500")
    for line in (
        "ranking: version 1; mode inline, lanes 1, max_batch_rows 1024, max_batch_ids 262144",
        "ads: version 1; mode worker, lanes 2, max_batch_rows 1024, max_batch_ids 262144",
        "feed: version 1; mode batch, lanes 1, max_batch_rows 64, max_batch_ids 500",
    ):
        assert line in process.log


async def test_of_several_models_a_request_has_to_name_one(tmp_path: Path, file: Path) -> None:
    with narsil_serve(tmp_path, [f"--config={file}"]) as process:
        for wire in WIRES:
            (answer,) = await ask(served_by(process.urls, tmp_path), wire, 1)
            assert answer.codes == {Code.MODEL_NOT_FOUND}
            assert "ranking, ads, feed" in answer.detail


@pytest.mark.parametrize("transports", [TRANSPORTS, ("http3",)])
def test_the_banner_has_lines_for_each_transport_and_each_model_that_work_when_pasted(
    tmp_path: Path, file: Path, transports: tuple[str, ...]
) -> None:
    with narsil_serve(tmp_path, [f"--config={file}"], transports) as process:
        lines = process.banner.partition("Try it:")[2].split("\n  ")[1:]
        # The first model has a line for each transport, the others have one.
        of_first = len(transports[:3])
        models = ["ranking"] * of_first + ["ads", "feed"]
        assert sum("--transport" in line for line in lines[:of_first]) == len(
            {"grpc", "http3"} & set(transports)
        )
        assert all(model in line for line, model in zip(lines, models, strict=True))
        check_lines(lines, tmp_path)


def test_one_model_that_cannot_be_loaded_is_named_and_nothing_is_served(
    tmp_path: Path, file: Path
) -> None:
    broken = '[models.broken]\nbackend = "torch_dlrm"\npath = "nowhere"\n'
    file.write_text(MODELS + broken)
    done = subprocess.run(
        [NARSIL, "serve", f"--config={file}", *ANY_PORTS],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "narsil: model broken: nowhere does not exist" in done.stderr
    assert "Traceback" not in done.stderr
    assert "is ready" not in done.stdout


@pytest.fixture
def file_with_a_stuck_model(file: Path) -> Path:
    stuck = "[models.stuck]\ncompute_s = 3\n[models.stuck.scheduler]\nwatchdog_s = 0.2\n"
    file.write_text(MODELS + stuck + 'on_failure = "reload"\n')
    return file


async def test_a_stuck_model_is_reloaded_in_the_same_process_while_the_others_serve(
    tmp_path: Path, file_with_a_stuck_model: Path
) -> None:
    with narsil_serve(tmp_path, [f"--config={file_with_a_stuck_model}"]) as process:
        served = served_by(process.urls, tmp_path)
        (answer,) = await ask(served, "grpc", 1, "stuck")
        assert "watchdog_s" in answer.detail
        (answer,) = await ask(served, "grpc", 1, "ads")
        assert not answer.codes, answer.detail
        async with httpx.AsyncClient(base_url=process.urls["admin"], timeout=60) as probe:
            assert (await probe.get("/livez")).status_code == 200
            async with asyncio.timeout(30):
                await until(lambda: is_ready(probe))
        assert "reload: stuck serves again" in process.log


async def is_ready(probe: httpx.AsyncClient) -> bool:
    return (await probe.get("/readyz")).status_code == 200
