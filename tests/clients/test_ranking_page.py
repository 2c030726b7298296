"""The examples of ``docs/ranking.md`` as they stand, with the real curl and NVIDIA's client."""

import asyncio
import shutil
from pathlib import Path

import httpx
import orjson
import pytest

from tests.fixtures.oip_http import oip_served
from tests.fixtures.pages import ADDRESS, examples, shell

PAGE = Path(__file__).parents[2] / "docs" / "ranking.md"
SCORES = [46.5, 59.5]


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
async def test_every_command_of_the_page_gets_the_same_scores(tmp_path: Path) -> None:
    commands = examples(PAGE, "sh")
    async with oip_served() as served:
        script = "\nprintf '\\n'\n".join(commands)
        output = await shell(script.replace(f"http://{ADDRESS}", served.url), tmp_path)
    *predicted, inferred = map(orjson.loads, output.splitlines())
    answer, _ = map(orjson.loads, examples(PAGE, "json"))
    assert predicted == [answer] * 3
    assert answer["predictions"]["default"] == SCORES
    assert inferred["outputs"][0]["data"] == SCORES


async def test_the_refusal_that_the_page_shows_is_given() -> None:
    context = {"float_features": [0.5, 1], "id_list_features": {"cat_0": [3]}}
    asked = {
        "context": context,
        "float_features": [[2, 3]],
        "id_list_features": {"cat_1": [[7]]},
    }
    _, refusal = map(orjson.loads, examples(PAGE, "json"))
    async with oip_served() as served, httpx.AsyncClient(timeout=60) as client:
        answer = await client.post(f"{served.url}/v1/predict", json=asked)
    assert answer.json()["detail"] == refusal["detail"]


async def test_the_pages_python_example_prints_what_it_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("tritonclient.http")
    (example,) = examples(PAGE, "python")
    async with oip_served() as served:
        source = example.replace(ADDRESS, served.url.removeprefix("http://"))
        await asyncio.to_thread(exec, source, {})
    assert capsys.readouterr().out.splitlines() == [str(SCORES)] * 2
