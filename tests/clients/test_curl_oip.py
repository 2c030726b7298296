"""The real curl, with the examples of ``docs/oip.md`` as they stand."""

import asyncio
import os
import re
import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.fixtures.oip_http import oip_served
from tests.fixtures.pages import ADDRESS, examples, shell
from transports.regions import SharedRegions

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")

PAGE = Path(__file__).parents[2] / "docs" / "oip.md"
SCORES = [25.5, 61.0]


async def test_every_example_of_the_page_is_answered_as_it_says(tmp_path: Path) -> None:
    commands = examples(PAGE, "sh")
    async with oip_served() as served:
        # One script for all: a later one uses what an earlier one made.
        script = "\nprintf '\\n'\n".join(commands)
        output = await shell(script.replace(f"http://{ADDRESS}", served.url), tmp_path)
    metadata, *answers, refusal = map(orjson.loads, output.splitlines())
    assert metadata["name"] == "fake"
    assert [answer["outputs"][0]["data"] for answer in answers] == [SCORES] * (len(commands) - 2)
    shown = [orjson.loads(block) for block in examples(PAGE, "json")]
    assert [answers[0], refusal] == shown


async def test_the_pages_python_examples_print_what_they_say(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("tritonclient.http")
    tensors, memory = examples(PAGE, "python")
    name = f"narsil-test-{os.getpid()}"
    async with oip_served() as served:
        served.engine.regions = regions = SharedRegions(name)
        address = served.url.removeprefix("http://")
        for example in (tensors, memory.replace("/ranker-1", f"/{name}")):
            await asyncio.to_thread(exec, example.replace(ADDRESS, address), {})
        assert regions.status() == []
    assert capsys.readouterr().out.splitlines() == [str(SCORES)] * 4


@pytest.mark.parametrize(
    ("options", "status", "read"),
    [
        ("-X POST {url}/v2/repository/index", 200, lambda answer: answer[0]["state"]),
        ("{url}/v2/health/ready", 200, lambda answer: answer["ready"]),
        ("{url}/v2/models/nope/infer -d '{{}}'", 404, lambda answer: answer["error"]),
        ("{url}/v2/logging", 501, lambda answer: answer["error"]),
        ("-X PUT {url}/v2", 405, lambda answer: answer["error"]),
        ("{url}/v2/models/fake/infer -d @/dev/null", 400, lambda answer: answer["error"]),
    ],
)
async def test_curl_reads_json_whatever_the_status(
    tmp_path: Path, options: str, status: int, read: Any
) -> None:
    async with oip_served() as served:
        command = f"curl -s -w '\\n%{{http_code}}' {options.format(url=served.url)}"
        body, _, code = (await shell(command, tmp_path)).rpartition(b"\n")
    assert int(code) == status
    assert read(orjson.loads(body))


async def test_curl_reads_a_binary_answer_behind_its_json(tmp_path: Path) -> None:
    request = {
        "inputs": [
            {"name": "float_features", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]},
            {"name": "id_list_features", "datatype": "INT64", "shape": [1, 2], "data": [1, 1]},
        ],
        "parameters": {"binary_data_output": True},
    }
    (tmp_path / "request.json").write_bytes(orjson.dumps(request))
    async with oip_served() as served:
        await shell(
            f"curl -s -D head -o body {served.url}/v2/models/fake/infer -d @request.json", tmp_path
        )
    head = (tmp_path / "head").read_text().lower()
    body = (tmp_path / "body").read_bytes()
    found = re.search(r"inference-header-content-length: (\d+)", head)
    assert found is not None
    assert body[int(found[1]) :] == b"\x00\x00\x88\x41"  # 17, a float32
