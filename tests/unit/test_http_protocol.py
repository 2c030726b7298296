"""What HTTP/1.1 clients do on a connection, well or badly, and what the server makes of it."""

import asyncio
from collections.abc import AsyncIterator

import orjson
import pytest

from scheduler.errors import Code
from tests.fixtures.raw_http import RawConnection, post, raw
from tests.fixtures.stub_engine import StubEngine
from tests.fixtures.stub_serving import PROBLEM, http_served, json_body, problem


@pytest.fixture
def engine() -> StubEngine:
    return StubEngine()


@pytest.fixture
async def connection(engine: StubEngine) -> AsyncIterator[RawConnection]:
    async with (
        http_served(engine, max_request_bytes=100_000, head_timeout_s=30.0) as url,
        raw(url) as opened,
    ):
        yield opened


@pytest.mark.parametrize(
    "garbage",
    [
        b"GARBAGE\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS client",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nhost x\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST /v1/predict HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/predict HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"POST /v1/predict HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999999999\r\n\r\n",
        b"POST /v1/predict HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST /v1/predict HTTP/1.1\r\ntransfer-encoding: chunked, gzip\r\n\r\n",
    ],
)
async def test_what_does_not_parse_gets_a_problem_and_a_closed_connection(
    connection: RawConnection, garbage: bytes
) -> None:
    await connection.send(garbage)
    answer = await connection.answer()
    assert answer.headers["content-type"] == PROBLEM
    assert answer.headers["connection"] == "close"
    problem(answer.body, 400)
    assert await connection.closed()


@pytest.mark.parametrize("head", [b"GET /livez HTTP/1.1\r\nhost: ", b"GET /"])
async def test_a_head_without_end_is_refused(connection: RawConnection, head: bytes) -> None:
    await connection.send(head, b"x" * 600_000)
    answer = await connection.answer()
    problem(answer.body, 431)
    assert await connection.closed()


async def test_a_trailer_without_end_is_refused(connection: RawConnection) -> None:
    head = b"POST /v1/predict HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    await connection.send(head, b"1\r\n{\r\n0\r\nname: ", b"x" * 600_000)
    problem((await connection.answer()).body, 431)
    assert await connection.closed()


async def test_what_trails_a_body_is_no_header(connection: RawConnection) -> None:
    await connection.send(
        b"POST /nope HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n",
        b"0\r\nx-request-id: trailed\r\n\r\n",
    )
    answer = await connection.answer()
    assert (answer.status, answer.headers["x-request-id"] == "trailed") == (404, False)


async def test_a_body_that_comes_byte_by_byte_is_read(connection: RawConnection) -> None:
    for byte in post(json_body([0.5])):
        await connection.send(bytes([byte]))
    assert (await connection.answer()).status == 200


async def test_a_chunked_body_is_read(connection: RawConnection) -> None:
    body = json_body([0.5])
    await connection.send(
        b"POST /v1/predict HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n",
        b"%x\r\n%b\r\n" % (len(body[:7]), body[:7]),
        b"%x;extension=1\r\n%b\r\n0\r\ntrailer: 1\r\n\r\n" % (len(body[7:]), body[7:]),
    )
    assert (await connection.answer()).status == 200


async def test_pipelined_requests_are_answered_in_order(connection: RawConnection) -> None:
    await connection.send(*(post(json_body([float(score)])) for score in range(20)))
    for score in range(20):
        answer = await connection.answer()
        assert orjson.loads(answer.body)["predictions"]["default"] == [score]


async def test_a_client_that_leaves_with_requests_pipelined_cancels_the_first(
    engine: StubEngine, connection: RawConnection
) -> None:
    engine.gate.clear()
    await connection.send(post(json_body([1.0])), post(json_body([2.0])))
    await engine.entered.wait()
    connection.writer.transport.abort()
    await engine.left.wait()
    (record,) = await engine.watcher.wait_for(1)
    assert record.code is Code.CANCELLED
    assert len(engine.requests) == 1


async def test_a_client_that_shuts_down_its_write_side_counts_as_gone(
    engine: StubEngine, connection: RawConnection
) -> None:
    engine.gate.clear()
    await connection.send(post(json_body([1.0])))
    await engine.entered.wait()
    connection.writer.write_eof()
    await engine.left.wait()
    assert await connection.closed()


async def test_a_client_that_leaves_mid_body_is_recorded_as_cancelled(
    engine: StubEngine, connection: RawConnection
) -> None:
    await connection.send(post(json_body([1.0]))[:-5])
    connection.writer.close()
    (record,) = await engine.watcher.wait_for(1)
    assert record.code is Code.CANCELLED
    assert not engine.requests


async def test_the_server_asks_for_a_body_that_waits_to_be_asked_for(
    connection: RawConnection,
) -> None:
    whole = post(json_body([0.5]), "expect: 100-continue")
    head, _, body = whole.partition(b"\r\n\r\n")
    await connection.send(head, b"\r\n\r\n")
    assert await connection.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    await connection.send(body)
    assert (await connection.answer()).status == 200


async def test_a_body_too_large_is_refused_before_it_is_asked_for(
    connection: RawConnection,
) -> None:
    await connection.send(
        b"POST /v1/predict HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n"
        b"content-length: 100001\r\n\r\n"
    )
    answer = await connection.answer()
    problem(answer.body, 413)
    assert answer.headers["connection"] == "close"


async def test_a_client_that_reads_only_after_its_last_byte_still_gets_the_413(
    connection: RawConnection,
) -> None:
    await connection.send(post(bytes(150_000)))
    problem((await connection.answer()).body, 413)
    assert await connection.closed()


async def test_a_request_to_another_page_with_a_body_keeps_the_connection(
    connection: RawConnection,
) -> None:
    await connection.send(post(b"ignored", path="/nope"), post(json_body([0.5])))
    assert (await connection.answer()).status == 404
    assert (await connection.answer()).status == 200


async def test_an_upgrade_that_is_not_offered_is_ignored(connection: RawConnection) -> None:
    offer = post(json_body([0.5]), "connection: upgrade", "upgrade: h2c")
    for whole in (offer, post(json_body([0.5])), offer, offer + offer):
        await connection.send(whole)
    for _ in range(5):
        assert (await connection.answer()).status == 200


async def test_an_upgrade_whose_body_comes_later_is_ignored_too(connection: RawConnection) -> None:
    whole = post(json_body([0.5]), "connection: upgrade", "upgrade: websocket")
    for byte in whole:
        await connection.send(bytes([byte]))
    assert (await connection.answer()).status == 200


async def test_thousands_of_offers_in_one_piece_are_thousands_of_answers(
    connection: RawConnection,
) -> None:
    offer = b"GET /livez HTTP/1.1\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
    sending = asyncio.create_task(connection.send(offer * 2000))
    for _ in range(2000):
        assert (await connection.answer()).status == 200
    await sending


async def test_connect_is_not_supported(connection: RawConnection) -> None:
    await connection.send(b"CONNECT example.org:443 HTTP/1.1\r\nhost: example.org\r\n\r\n")
    problem((await connection.answer()).body, 501)
    assert await connection.closed()


async def test_http_1_0_is_answered_and_closed(connection: RawConnection) -> None:
    await connection.send(post(json_body([0.5])).replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert (await connection.answer()).status == 200
    assert await connection.closed()


@pytest.mark.parametrize("sent", [b"", b"GET /livez HT", b"\r\n"])
async def test_a_connection_that_sends_no_whole_head_is_closed(
    engine: StubEngine, sent: bytes
) -> None:
    async with http_served(engine, head_timeout_s=0.05) as url, raw(url) as connection:
        await connection.send(sent)
        assert await connection.closed()


async def test_a_request_that_takes_longer_than_a_head_may_is_not_cut(engine: StubEngine) -> None:
    engine.gate.clear()
    async with http_served(engine, head_timeout_s=0.05) as url, raw(url) as connection:
        await connection.send(post(json_body([0.5])))
        await engine.entered.wait()
        await asyncio.sleep(0.1)
        engine.gate.set()
        assert (await connection.answer()).status == 200


async def test_a_body_that_stalls_is_a_408(engine: StubEngine) -> None:
    async with http_served(engine, body_timeout_s=0.05) as url, raw(url) as connection:
        await connection.send(post(json_body([0.5]))[:-5])
        answer = await connection.answer()
        assert "body_timeout_s" in problem(answer.body, 408)["detail"]
        connection.writer.close()
        (record,) = await engine.watcher.wait_for(1)
        assert record.code is Code.DEADLINE_EXCEEDED
