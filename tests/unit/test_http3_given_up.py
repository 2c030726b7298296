"""HTTP/3 requests that are given up in the very turn of the loop in which they are answered."""

import asyncio
import logging
from pathlib import Path

import pytest
from aioquic.h3.connection import ErrorCode
from aioquic.quic.events import StreamReset

from tests.fixtures.raw_http3 import head, raw_client
from tests.fixtures.stub_engine import StubEngine
from tests.fixtures.stub_serving import http3_client, http3_served, json_body
from transports.http3.connection import Connection
from transports.http3.server import Http3Transport


def only_connection(transport: Http3Transport) -> Connection:
    assert transport._endpoint is not None
    (connection,) = transport._endpoint._host.connections
    return connection


@pytest.mark.parametrize("coding", ["identity", "gzip"], ids=["whole", "as messages"])
async def test_an_answer_between_a_stop_and_the_word_of_it_is_no_fault(
    certificates: Path, caplog: pytest.LogCaptureFixture, coding: str
) -> None:
    engine = StubEngine()
    engine.gate.clear()
    async with http3_served(engine, certificates) as transport, raw_client(transport) as raw:
        headers = head(accept_encoding=coding)
        stream_id = raw.request(headers, json_body([0.5] * 2000))
        await engine.entered.wait()
        connection = only_connection(transport)
        session = connection._session
        assert session is not None
        # What datagrams mean is told a turn later; here, much later.
        connection._telling = asyncio.get_running_loop().call_later(3600, connection._tell)
        raw.quic.stop_stream(stream_id, ErrorCode.H3_REQUEST_CANCELLED)
        raw.transmit()
        while session.takes_answer(stream_id):  # noqa: ASYNC110  # datagrams tell us nothing
            await asyncio.sleep(0)
        engine.gate.set()
        await engine.watcher.wait_for(1)
        while connection._requests:  # noqa: ASYNC110
            await asyncio.sleep(0)
        connection._tell()
        await raw.wait_for(StreamReset, lambda reset: reset.stream_id == stream_id)
        assert await raw.status(raw.request(head(), json_body([0.5]))) == 200
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


async def test_a_cancel_once_the_answer_is_there_is_a_cancel(certificates: Path) -> None:
    engine = StubEngine()
    engine.gate.clear()
    async with http3_served(engine, certificates) as transport, http3_client(transport) as client:
        asking = asyncio.create_task(client.post("/v1/predict", json_body([0.5]), {}))
        await engine.entered.wait()
        protocol = client._protocol
        (stream_id,) = protocol._pending
        protocol._telling = asyncio.get_running_loop().call_later(3600, protocol._tell)
        engine.gate.set()
        while stream_id in protocol._quic._streams:  # until all of it has come
            await asyncio.sleep(0)
            protocol.transmit_now()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        protocol._tell()
        assert (await client.get("/livez")).status == 200
