"""Large bodies that pass the parser by, on real sockets: whole, and what ends them early."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import uvloop
from starlette.types import Receive, Scope, Send

from scheduler.errors import ServingError
from tests.fixtures.raw_http import RawConnection, post, raw
from transports.http.admin import StraightListener
from transports.http.body import Body
from transports.http.intake import BodyLimits, Intake
from transports.http.listener import ListenerOptions
from transports.http.problem import HttpError
from transports.http.sockets import bind, port_of
from transports.http.straight import PIECE_BYTES, straight_of
from transports.http.unsent import Unsent

BODY = bytes(range(256)) * (5 * PIECE_BYTES // 256) + b"and its end"
HALF = len(BODY) // 2


class Taker:
    """An app that takes bodies straight and answers with how long they are."""

    def __init__(self, limits: BodyLimits, idle: Callable[[], bool]) -> None:
        self.intake = Intake(limits)
        self.taken: list[bytes] = []
        self.ended: list[ServingError | HttpError] = []
        self.begun, self.over = asyncio.Event(), asyncio.Event()
        self._idle = idle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        status, body = 200, Body(receive, self.intake)
        length = int(dict(scope["headers"])[b"content-length"])
        straight = straight_of(scope)
        assert straight is not None
        self.begun.set()
        try:
            self.taken.append(bytes(await body.straight(length, straight, self._idle)))
        except (ServingError, HttpError) as error:
            self.ended.append(error)
            status = 503
        finally:
            body.release()
            self.over.set()
        headers = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def taking(
    idle: Callable[[], bool] = lambda: True, limits: BodyLimits | None = None
) -> AsyncIterator[tuple[Taker, str, StraightListener]]:
    before = asyncio.all_tasks()
    taker = Taker(limits or BodyLimits(), idle)
    bound = bind("127.0.0.1", 0, socket.SOCK_STREAM)
    listener = StraightListener(taker, ListenerOptions(), Unsent(1 << 20))
    await listener.start(bound)
    try:
        yield taker, f"http://127.0.0.1:{port_of(bound)}", listener
    finally:
        await listener.stop(0.0)
    assert asyncio.all_tasks() == before


async def half_sent(connection: RawConnection, taker: Taker) -> None:
    """Send the first half of a body, of which the app is waiting for the rest then."""
    await connection.send(post(BODY)[:-HALF])
    await taker.begun.wait()


async def several() -> None:
    """Have three requests answered whose bytes come with no regard to where one ends."""
    async with taking() as (taker, url, _), raw(url) as connection:
        sent = post(BODY) + post(b"short") + post(BODY[::-1])
        for start in range(0, len(sent), 100_000):
            await connection.send(sent[start : start + 100_000])
        assert [(await connection.answer()).status for _ in range(3)] == [200, 200, 200]
        assert taker.taken == [BODY, b"short", BODY[::-1]]


async def test_bodies_arrive_whole_and_the_next_request_is_found_behind_each() -> None:
    await several()


def test_so_they_do_on_the_servers_own_loop() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(several())


async def test_a_client_that_waits_for_leave_to_send_is_given_it() -> None:
    async with taking() as (taker, url, _), raw(url) as connection:
        sent = post(BODY, "expect: 100-continue")
        await connection.send(sent[: -len(BODY)])
        assert (await connection.answer()).status == 100
        await connection.send(BODY)
        assert (await connection.answer()).status == 200
        assert taker.taken == [BODY]


async def test_where_somebody_always_computes_a_body_arrives_all_the_same() -> None:
    async with taking(lambda: False) as (taker, url, _), raw(url) as connection:
        await connection.send(post(BODY))
        assert (await connection.answer()).status == 200
        assert taker.taken == [BODY]


async def test_a_client_that_leaves_within_its_body_ends_the_request() -> None:
    async with taking() as (taker, url, _):
        async with raw(url) as connection:
            await half_sent(connection, taker)
        await taker.over.wait()
        assert "the client left" in str(taker.ended[0])
        assert not taker.taken


async def test_a_body_that_does_not_come_in_time_is_answered_and_its_connection_closed() -> None:
    async with (
        taking(limits=BodyLimits(body_timeout_s=0.05)) as (taker, url, _),
        raw(url) as connection,
    ):
        await connection.send(post(BODY)[:-HALF])
        assert (await connection.answer()).headers["connection"] == "close"
        assert await connection.closed()
        assert "body_timeout_s" in str(taker.ended[0])


async def test_a_server_that_stops_within_a_body_says_so() -> None:
    async with taking() as (taker, url, listener), raw(url) as connection:
        await half_sent(connection, taker)
        await listener.stop(0.0)
        assert (await connection.answer()).status == 503
        assert "the server stopped" in str(taker.ended[0])


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (BodyLimits(max_request_bytes=len(BODY) - 1), "max_request_bytes"),
        (BodyLimits(max_buffered_bytes=len(BODY) - 1), "max_buffered_bytes"),
    ],
)
async def test_what_is_too_large_is_refused_by_its_head(limits: BodyLimits, said: str) -> None:
    async with taking(limits=limits) as (taker, url, _), raw(url) as connection:
        await connection.send(post(BODY), post(b"short"))
        assert [(await connection.answer()).status for _ in range(2)] == [503, 200]
        assert said in str(taker.ended[0])
