"""The admin listener's pages for embedding updates."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import numpy as np
import pytest

from app.observe import PrometheusObserver
from backends.fake import FakeBackend, FakeOptions
from scheduler.engine import Engine
from scheduler.options import SchedulerOptions
from tests.fixtures.delta_files import FORMATS, delta_bytes
from tests.fixtures.updatable import DIM, TABLES, UpdatableFake, delta
from transports.http.admin import AdminOptions, AdminTransport
from transports.http.server import HttpOptions, HttpTransport

PAGE = "/v1/models/fake/embeddings"
TYPES = {
    "stream": "application/vnd.apache.arrow.stream",
    "file": "application/vnd.apache.arrow.file",
    "parquet": "application/vnd.apache.parquet",
    "json": "application/json; charset=utf-8",
}


@asynccontextmanager
async def asking(backend: FakeBackend, *, updates: bool = True) -> AsyncIterator[httpx.AsyncClient]:
    observer = PrometheusObserver()
    engine = Engine(SchedulerOptions(), observer)
    await engine.load(backend)
    engine.open()
    admin = AdminTransport(AdminOptions(port=0, updates=updates))
    (url,) = await admin.start(engine)
    try:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            yield client
    finally:
        await admin.stop(0.0)
        await engine.close(0.0)


@pytest.mark.parametrize("form", FORMATS)
async def test_a_delta_of_any_format_is_applied_shown_and_rolled_back(form: str) -> None:
    backend = UpdatableFake()
    body = delta_bytes(form, delta().tables, id="d", base="0")
    async with asking(backend) as client:
        for outcome in ("applied", "already_applied"):
            answer = await client.post(PAGE, content=body, headers={"content-type": TYPES[form]})
            assert answer.status_code == 200
            said = answer.json()
            assert (said["outcome"], said["sequence"], said["rows"]) == (outcome, 1, 2)
        assert np.flatnonzero(backend.stored[TABLES[0]].all(axis=1)).tolist() == [1, 2]
        shown = (await client.get(PAGE)).json()
        assert (shown["sequence"], shown["rows"], shown["updatable"]) == (1, 2, True)
        assert [one["id"] for one in shown["deltas"]] == ["d"]
        assert shown["tables"][0] == {"name": TABLES[0], "rows": 10, "dim": DIM, "kind": "fp32"}
        undone = (await client.post(f"{PAGE}/rollback")).json()
        assert (undone["rows"], undone["deltas"]) == (2, 1)
        assert (await client.get(PAGE)).json()["sequence"] == 0
        metrics = (await client.get("/metrics")).text
    series = 'narsil_update_deltas_total{model="fake",outcome="%s"} 1.0'
    for outcome in ("applied", "already_applied", "rolled_back"):
        assert series % outcome in metrics
    assert 'narsil_update_rows_total{model="fake"} 4.0' in metrics
    assert 'narsil_update_sequence{model="fake",version="1"} 0.0' in metrics


@pytest.mark.parametrize(
    ("content", "kind", "path", "status", "said"),
    [
        (b"PAR1 and no more", "parquet", PAGE, 400, "the delta cannot be read"),
        (b"", "stream", PAGE, 400, "the delta cannot be read"),
        (b"{}", "json", PAGE, 400, "tables is null"),
        (None, "stream", "/v1/models/other/embeddings", 404, "no model 'other'"),
        (None, "json", f"{PAGE}?version=9", 404, "of version '9'"),
        (None, "json", f"{PAGE}?base=9", 400, "unknown query parameter 'base'"),
        ({"version": "3"}, "file", f"{PAGE}?version=1", 400, "version is '1' in the path, '3'"),
        ({"base": "5"}, "parquet", PAGE, 400, "base is 5"),
    ],
)
async def test_what_is_wrong_is_said_and_nothing_is_changed(
    content: bytes | dict[str, str] | None, kind: str, path: str, status: int, said: str
) -> None:
    backend = UpdatableFake()
    if not isinstance(content, bytes):
        content = delta_bytes(kind, delta().tables, **(content or {}))
    async with asking(backend) as client:
        answer = await client.post(path, content=content, headers={"content-type": TYPES[kind]})
        assert answer.status_code == status
        assert said in answer.json()["detail"]
        assert not backend.stored[TABLES[0]].any()


async def test_json_that_would_hold_up_the_server_is_refused() -> None:
    async with asking(UpdatableFake()) as client:
        answer = await client.post(PAGE, json={"id": "x" * (9 << 20), "tables": {}})
        assert answer.status_code == 413
        assert "max_json_bytes" in answer.json()["detail"]


async def test_a_delta_that_is_called_a_form_is_told_what_it_may_be() -> None:
    async with asking(UpdatableFake()) as client:
        body = delta_bytes("json", delta().tables)
        form = {"content-type": "application/x-www-form-urlencoded"}  # what curl -d says
        answer = await client.post(PAGE, content=body, headers=form)
        assert answer.status_code == 415
        assert "application/json, application/vnd.apache.arrow.file" in answer.json()["detail"]


async def test_nobody_may_change_a_model_unless_that_was_allowed() -> None:
    backend = UpdatableFake()
    body = delta_bytes("json", delta().tables)
    async with asking(backend, updates=False) as client:
        for path in (PAGE, f"{PAGE}/rollback"):
            answer = await client.post(path, content=body, headers={"content-type": TYPES["json"]})
            assert answer.status_code == 501
            assert "--admin-updates" in answer.json()["detail"]
        shown = (await client.get(PAGE)).json()
        assert (shown["sequence"], shown["updatable"]) == (0, False)
        assert "--admin-updates" in shown["reason"]
        assert not backend.stored[TABLES[0]].any()


async def test_the_operators_document_says_what_a_delta_may_be_sent_as() -> None:
    async with asking(UpdatableFake()) as client:
        methods = (await client.get("/openapi.json")).json()["paths"][
            "/v1/models/{model}/embeddings"
        ]
        assert {*methods} == {"get", "post"}
        accepted = methods["post"]["requestBody"]["content"]
        assert {*accepted} == {kind.partition(";")[0] for kind in TYPES.values()}
        assert (await client.put(PAGE, content=b"")).status_code == 405


async def test_a_model_that_takes_no_updates_is_shown_with_the_reason() -> None:
    async with asking(FakeBackend(FakeOptions())) as client:
        shown = (await client.get(PAGE)).json()
        assert not shown["updatable"]
        assert "takes no embedding updates" in shown["reason"]


async def test_the_clients_listener_has_no_such_page() -> None:
    engine = Engine(SchedulerOptions(), PrometheusObserver())
    await engine.load(UpdatableFake())
    engine.open()
    http = HttpTransport(HttpOptions(port=0))
    (url,) = await http.start(engine)
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        assert (await client.get(PAGE)).status_code == 404
        assert (await client.post(PAGE, json={"tables": {}})).status_code == 404
    await http.stop(0.0)
    await engine.close(0.0)
