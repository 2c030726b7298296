"""Start and stop of the HTTP/3 transport."""

import asyncio
import socket
import ssl
from pathlib import Path

import httpx
import pytest
from aioquic.h3.connection import ErrorCode
from aioquic.quic.events import ConnectionTerminated, StreamDataReceived, StreamReset

from scheduler.errors import Code
from tests.fixtures.raw_http3 import head, raw_client
from tests.fixtures.stub_engine import StubEngine
from tests.fixtures.stub_serving import (
    assert_no_task_remains,
    http3_served,
    json_body,
    problem,
)
from transports.http3.server import Http3Options, Http3Transport


async def started(engine: StubEngine, certificates: Path) -> Http3Transport:
    transport = Http3Transport(Http3Options(port=0, certificate_dir=str(certificates)))
    await transport.start(engine)
    return transport


async def test_https_on_the_same_port_tells_of_http_3(certificates: Path) -> None:
    async with http3_served(StubEngine(), certificates) as transport:
        assert transport.certificate is not None
        context = ssl.create_default_context(cafile=transport.certificate.path)
        async with httpx.AsyncClient(verify=context, timeout=60) as client:
            answer = await client.post(
                f"https://localhost:{transport.port}/v1/predict", content=json_body([0.5])
            )
    assert answer.status_code == 200
    assert answer.headers["alt-svc"] == f'h3=":{transport.port}"; ma=86400'


async def test_https_can_be_left_out(certificates: Path) -> None:
    async with http3_served(StubEngine(), certificates, tcp=False) as transport:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", transport.port)


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM], ids=["udp", "tcp"])
async def test_a_taken_port_is_named_and_nothing_stays_bound(
    certificates: Path, kind: socket.SocketKind
) -> None:
    with socket.socket(socket.AF_INET, kind) as taken:
        taken.bind(("127.0.0.1", 0))
        if kind is socket.SOCK_STREAM:
            taken.listen()
        port = taken.getsockname()[1]
        options = Http3Options(port=port, certificate_dir=str(certificates))
        with pytest.raises(OSError, match=rf"127\.0\.0\.1:{port}/"):
            await Http3Transport(options).start(StubEngine())
    transport = Http3Transport(options)
    await transport.start(StubEngine())
    await transport.stop(0.0)


def test_half_a_pair_of_files_is_refused() -> None:
    with pytest.raises(ValueError, match="private_key"):
        Http3Options(certificate="some.pem")


async def test_stopping_what_was_never_started_does_nothing() -> None:
    await Http3Transport(Http3Options()).stop(0.0)


async def test_stop_finishes_what_is_under_way_and_rejects_what_comes_later(
    certificates: Path,
) -> None:
    engine, before = StubEngine(), asyncio.all_tasks()
    transport = await started(engine, certificates)
    engine.gate.clear()
    async with raw_client(transport) as raw:
        admitted = raw.request(head(), json_body([0.5]))
        await engine.entered.wait()
        stopping = asyncio.create_task(transport.stop(60.0))
        await asyncio.sleep(0)
        # On the control stream: GOAWAY (RFC 9114 7.2.6), its length, and the first stream refused.
        await raw.wait_for(StreamDataReceived, lambda event: event.data == bytes([7, 1, 4]))
        late = raw.request(head(), json_body([0.5]))
        reset = await raw.wait_for(StreamReset)
        assert (reset.stream_id, reset.error_code) == (late, ErrorCode.H3_REQUEST_REJECTED)
        assert not stopping.done()
        engine.gate.set()
        assert await raw.status(admitted) == 200
        assert b"0.5" in await raw.answer(admitted)
        end = await raw.wait_for(ConnectionTerminated)
        assert end.error_code == ErrorCode.H3_NO_ERROR
        await stopping
    await assert_no_task_remains(before)


async def test_stop_delivers_an_answer_larger_than_a_window(certificates: Path) -> None:
    engine, rows = StubEngine(), 100_000
    transport = await started(engine, certificates)
    engine.gate.clear()
    async with raw_client(transport) as raw:
        stream_id = raw.request(head(), json_body([0.5] * rows))
        await engine.entered.wait()
        stopping = asyncio.create_task(transport.stop(60.0))
        engine.gate.set()
        assert (await raw.answer(stream_id)).count(b"0.5") == rows
        await stopping


async def test_stop_answers_what_outlasts_the_grace_and_leaves_no_task(certificates: Path) -> None:
    engine, before = StubEngine(), asyncio.all_tasks()
    transport = await started(engine, certificates)
    engine.gate.clear()
    async with raw_client(transport) as raw:
        stream_id = raw.request(head(), json_body([0.5]))
        await engine.entered.wait()
        await transport.stop(0.01)
        problem(await raw.answer(stream_id), 503)
        await raw.wait_for(ConnectionTerminated)
    await assert_no_task_remains(before)
    (record,) = engine.watcher.records
    assert record.code is Code.UNAVAILABLE


async def test_stop_does_not_wait_for_a_body_that_is_not_complete(certificates: Path) -> None:
    engine = StubEngine()
    transport = await started(engine, certificates)
    async with raw_client(transport) as raw:
        first = raw.request(head(), json_body([0.5])[:-1], end=False)
        assert await raw.status(raw.request(head("GET", "/livez"))) == 200
        stopping = asyncio.create_task(transport.stop(60.0))
        assert "stopping" in problem(await raw.answer(first), 503)["detail"]
        await stopping
    (record,) = engine.watcher.records
    assert record.code is Code.UNAVAILABLE
