"""Start and stop of the HTTP/1.1 transport."""

import asyncio
import contextlib
import re
import socket
from functools import partial

import httpx
import pytest

from scheduler.errors import Code
from tests.fixtures.raw_http import post, raw
from tests.fixtures.stub_engine import StubEngine
from tests.fixtures.stub_serving import (
    assert_no_task_remains,
    http_served,
    json_body,
    problem,
)
from transports.http.protocol import MAX_PIPELINED, PIECE_BYTES
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


@pytest.mark.parametrize("host", ["no.such.host.invalid", "x" * 64, "a..b", "nul\0"])
async def test_a_host_that_is_none_is_named(host: str) -> None:
    with pytest.raises(OSError, match=f"cannot listen on {re.escape(host)}:8000/tcp: "):
        await HttpTransport(HttpOptions(host=host)).start(StubEngine())


async def test_a_port_is_free_again_after_stop() -> None:
    async with (
        http_served(StubEngine()) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        await client.get("/livez")
    transport = HttpTransport(HttpOptions(port=httpx.URL(url).port or 0))
    assert await transport.start(StubEngine()) == (url,)
    await transport.stop(0.0)


async def test_stopping_what_was_never_started_does_nothing() -> None:
    await HttpTransport(HttpOptions()).stop(0.0)


async def test_stop_does_not_wait_for_a_client_that_was_refused_and_stays() -> None:
    transport = HttpTransport(HttpOptions(port=0))
    (url,) = await transport.start(StubEngine())
    async with raw(url) as connection:
        await connection.send(b"BAD\r\n\r\n")
        assert (await connection.answer()).status == 400
        async with asyncio.timeout(60):
            await transport.stop(3600.0)


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


async def test_stop_answers_what_outlasts_the_grace_and_leaves_no_task() -> None:
    engine, before = StubEngine(), asyncio.all_tasks()
    transport = HttpTransport(HttpOptions(port=0))
    (url,) = await transport.start(engine)
    engine.gate.clear()
    async with raw(url) as busy:
        await busy.send(post(json_body([0.5])), post(json_body([0.5])))
        await engine.entered.wait()
        await transport.stop(0.01)
        for _ in range(2):
            problem((await busy.answer()).body, 503)
        assert await busy.closed()
        await assert_no_task_remains(before)
    records = await engine.watcher.wait_for(2)
    assert {record.code for record in records} == {Code.UNAVAILABLE}


async def test_stop_does_not_wait_for_a_body_that_is_not_complete() -> None:
    engine, before = StubEngine(), asyncio.all_tasks()
    transport = HttpTransport(HttpOptions(port=0))
    (url,) = await transport.start(engine)
    async with raw(url) as uploading:
        await uploading.send(post(json_body([0.5]), "expect: 100-continue")[:-1])
        await uploading.reader.readuntil(b"100 Continue\r\n\r\n")
        stopping = asyncio.create_task(transport.stop(60.0))
        answer = await uploading.answer()
        assert "stopping" in problem(answer.body, 503)["detail"]
        uploading.writer.close()
        await stopping
    await assert_no_task_remains(before)
    (record,) = engine.watcher.records
    assert record.code is Code.UNAVAILABLE


async def test_requests_on_connections_that_come_as_it_stops_are_refused_not_reset() -> None:
    transport = HttpTransport(HttpOptions(port=0))
    (url,) = await transport.start(StubEngine())
    address = ("127.0.0.1", httpx.URL(url).port)
    with contextlib.ExitStack() as stack:
        # The loop has no turn in which to accept them.
        late = [stack.enter_context(socket.create_connection(address)) for _ in range(8)]
        for client in late:
            client.sendall(post(json_body([0.5])))
        await transport.stop(60.0)
        for client in late:
            answer = b"".join(iter(partial(client.recv, 65536), b""))
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"connection: close\r\n" in answer
            assert b"the server is stopping" in answer


async def test_a_connection_that_comes_as_it_stops_and_asks_nothing_is_closed_in_time() -> None:
    transport = HttpTransport(HttpOptions(port=0))
    (url,) = await transport.start(StubEngine())
    with socket.create_connection(("127.0.0.1", httpx.URL(url).port)) as silent:
        await transport.stop(0.05)
        assert silent.recv(1) == b""


async def test_a_request_that_has_arrived_as_it_stops_is_refused_not_reset() -> None:
    transport = HttpTransport(HttpOptions(port=0))
    (url,) = await transport.start(StubEngine())
    with socket.create_connection(("127.0.0.1", httpx.URL(url).port)) as client:
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(client, b"GET /livez HTTP/1.1\r\n\r\n")
        assert (await loop.sock_recv(client, 65536)).startswith(b"HTTP/1.1 200 ")
        client.sendall(post(json_body([0.5])))  # the loop has no turn in which to read it
        await transport.stop(60.0)
        client.setblocking(True)
        answer = b"".join(iter(partial(client.recv, 65536), b""))
        assert answer.startswith(b"HTTP/1.1 503 ")


async def test_a_client_that_takes_nothing_of_its_answers_is_cut() -> None:
    transport = HttpTransport(HttpOptions(port=0, write_timeout_s=0.2))
    (url,) = await transport.start(StubEngine())
    async with raw(url) as deaf:
        big = b"GET /static-offline-docs/swagger-ui-bundle.js HTTP/1.1\r\nhost: x\r\n\r\n"
        await deaf.send(big * 10)
        await deaf.reader.readuntil(b"\r\n\r\n")
        assert transport._listener is not None
        await transport._listener._wait_closed()
    await transport.stop(0.0)


async def test_requests_in_the_pipeline_are_parsed_a_few_at_a_time() -> None:
    engine, count = StubEngine(), 3000
    transport = HttpTransport(HttpOptions(port=0))
    (url,) = await transport.start(engine)
    engine.gate.clear()
    async with raw(url) as connection:
        short = b"GET /livez HTTP/1.1\r\n\r\n"
        sending = asyncio.create_task(connection.send(post(json_body([0.5])), short * count))
        await engine.entered.wait()
        assert transport._listener is not None
        (protocol,) = transport._listener._connections()
        async with raw(url) as other:
            for _ in range(3):
                await other.send(short)
                assert (await other.answer()).status == 200
        most = MAX_PIPELINED + PIECE_BYTES // len(short) + 1
        assert MAX_PIPELINED <= len(protocol.pipeline) <= most
        engine.gate.set()
        for _ in range(count + 1):
            assert (await connection.answer()).status == 200
        await sending
    await transport.stop(1.0)


async def test_an_answers_body_does_not_wait_for_its_head_to_be_acknowledged() -> None:
    transport = HttpTransport(HttpOptions(port=0))
    (url,) = await transport.start(StubEngine())
    async with raw(url) as connection:
        await connection.send(b"GET /livez HTTP/1.1\r\n\r\n")
        await connection.answer()
        assert transport._listener is not None
        (protocol,) = transport._listener._connections()
        accepted = protocol.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    await transport.stop(1.0)
