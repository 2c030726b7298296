"""Start and stop of the HTTP/1.1 transport."""

import asyncio
import socket

import httpx
import pytest

from scheduler.errors import Code
from tests.fixtures.raw_http import post, raw
from tests.fixtures.stub_engine import StubEngine
from tests.fixtures.stub_serving import assert_no_task_remains, http_served, json_body
from transports.http.server import HttpOptions, HttpTransport


async def test_port_zero_takes_a_free_port_and_reports_it() -> None:
    async with http_served(StubEngine()) as one, http_served(StubEngine()) as other:
        assert one.startswith("http://127.0.0.1:")
        assert one != other


async def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=rf"127\.0\.0\.1:{port}/tcp"):
            await HttpTransport(HttpOptions(port=port)).start(StubEngine())


async def test_an_unknown_host_is_named() -> None:
    with pytest.raises(OSError, match=r"no\.such\.host\.invalid"):
        await HttpTransport(HttpOptions(host="no.such.host.invalid")).start(StubEngine())


async def test_a_port_is_free_again_after_stop() -> None:
    async with http_served(StubEngine()) as url, httpx.AsyncClient(base_url=url) as client:
        await client.get("/livez")
    transport = HttpTransport(HttpOptions(port=httpx.URL(url).port or 0))
    assert await transport.start(StubEngine()) == (url,)
    await transport.stop(0.0)


async def test_stopping_what_was_never_started_does_nothing() -> None:
    await HttpTransport(HttpOptions()).stop(0.0)


async def test_stop_lets_the_answer_under_way_finish_and_closes_idle_connections() -> None:
    engine, before = StubEngine(), asyncio.all_tasks()
    transport = HttpTransport(HttpOptions(port=0))
    (url,) = await transport.start(engine)
    engine.gate.clear()
    async with raw(url) as busy, raw(url) as idle:
        await busy.send(post(json_body([0.5])))
        await engine.entered.wait()
        stopping = asyncio.create_task(transport.stop(60.0))
        assert await idle.closed()
        with pytest.raises(ConnectionRefusedError):
            async with raw(url):
                pass
        assert not stopping.done()
        engine.gate.set()
        answer = await busy.answer()
        assert answer.status == 200
        assert answer.headers["connection"] == "close"
        await stopping
    await assert_no_task_remains(before)


async def test_stop_cuts_what_outlasts_the_grace_and_leaves_no_task() -> None:
    engine, before = StubEngine(), asyncio.all_tasks()
    transport = HttpTransport(HttpOptions(port=0))
    (url,) = await transport.start(engine)
    engine.gate.clear()
    async with raw(url) as busy, raw(url) as uploading:
        await uploading.send(post(json_body([0.5]))[:-1])
        await busy.send(post(json_body([0.5])))
        await engine.entered.wait()
        await transport.stop(0.01)
        await assert_no_task_remains(before)
    records = await engine.watcher.wait_for(2)
    assert {record.code for record in records} == {Code.CANCELLED}
