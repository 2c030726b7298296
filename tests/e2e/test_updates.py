"""``narsil serve`` with a watched folder and an open admin page: the scores follow the rows."""

import json
from pathlib import Path

import httpx
import pytest

from tests.e2e.process import Process, narsil_serve


async def until_applied(client: httpx.AsyncClient, page: str, sequence: int) -> None:
    """Return once so many deltas are in force; the test's time limit is the only one."""
    while (await client.get(page)).json()["sequence"] < sequence:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch_dlrm", "native_dlrm"])
async def test_rows_from_a_folder_and_a_page_reach_the_answers(
    small_artifact: Path, tmp_path: Path, backend: str
) -> None:
    example = json.loads((small_artifact / "example.json").read_text())
    deltas = tmp_path / "deltas"
    deltas.mkdir()
    arguments = [str(small_artifact), "--backend", backend, "--max-batch-rows", "64",
                 "--admin-updates", "true", "--deltas", str(deltas)]  # fmt: skip
    with narsil_serve(tmp_path, arguments, ["http", "admin"]) as server:
        await follow(server, example, deltas)


async def follow(server: Process, example: object, deltas: Path) -> None:
    page = f"{server.urls['admin']}/v1/models/small/embeddings"
    async with httpx.AsyncClient(timeout=60) as client:

        async def scores() -> object:
            answer = await client.post(f"{server.urls['http']}/v1/predict", json=example)
            return answer.json()["predictions"]

        loaded = await scores()
        tables = (await client.get(page)).json()["tables"]
        rows = {
            table["name"]: {
                "rows": list(range(table["rows"])),
                "values": [[0.25] * table["dim"]] * table["rows"],
            }
            for table in tables
        }
        (deltas / ".1.json").write_text(json.dumps({"base": 0, "tables": rows}))
        (deltas / ".1.json").rename(deltas / "1.json")
        await until_applied(client, page, 1)
        updated = await scores()
        assert updated != loaded
        assert (await client.post(f"{page}/rollback")).json()["deltas"] == 1
        assert await scores() == loaded
        again = await client.post(page, json={"id": "again", "base": 0, "tables": rows})
        assert again.json()["outcome"] == "applied"
        assert await scores() == updated
