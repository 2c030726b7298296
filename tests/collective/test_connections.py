"""Callers that are too many, unknown, silent or out of turn; and servers that stop."""

import asyncio
import contextlib
import gc
import re
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import numpy as np
import pytest

from scheduler.errors import Code, ServingError
from scheduler.threads import run_in_thread
from tests.collective.serving import Met, Peers, collective_served
from tests.fixtures.gates import make_request
from transports.collective.channel import Channel
from transports.collective.client import CollectiveClient
from transports.collective.framing import encode
from transports.collective.messages import Ask, Cancel, Failure, Hello, Rendezvous, Welcome

pytestmark = pytest.mark.asyncio(loop_scope="package")


class _Caller:
    """A known client that may ask for three rows."""

    control = False

    def begin(self) -> None:
        """Count nothing."""

    def spend(self, rows: int) -> None:
        """Refuse a fourth row."""
        if rows > 3:
            raise ServingError(Code.RATE_LIMITED, "too many rows")


class _Access:
    """Knows one key."""

    def caller(self, credential: str) -> _Caller:
        """Return the caller of the key."""
        if credential != "secret":
            raise ServingError(Code.UNAUTHENTICATED, "no such key")
        return _Caller()


@contextlib.asynccontextmanager
async def _channel(met: Met) -> AsyncIterator[Channel]:
    where = urlsplit(met.url)
    channel = Channel(*await asyncio.open_connection(where.hostname, where.port))
    try:
        yield channel
    finally:
        channel.close()


def _connected(met: Met, api_key: str = "") -> "asyncio.Future[CollectiveClient]":
    return run_in_thread(lambda: CollectiveClient(met.url, api_key=api_key), "connecting")


async def _connect_until_refused(met: Met, clients: contextlib.AsyncExitStack) -> None:
    # Callers of other tests may still be going.
    while True:
        clients.enter_context(await _connected(met))


async def test_a_caller_too_many_is_told_so_and_let_in_when_another_has_gone(met: Met) -> None:
    async with contextlib.AsyncExitStack() as clients:
        with pytest.raises(ServingError) as refused:
            await _connect_until_refused(met, clients)
    assert refused.value.code is Code.OVERLOADED
    assert refused.value.detail == (
        "connections: the limit of 8 is reached (option max_connections of the collective "
        "transport)"
    )
    while len(met.transport._sessions) == 8:
        await asyncio.wait(met.transport._sessions, return_when=asyncio.FIRST_COMPLETED)
    (await _connected(met)).close()


async def test_a_key_is_needed_where_keys_are_and_its_limits_count(met: Met) -> None:
    met.engine.access = _Access()
    try:
        with pytest.raises(ServingError) as unknown:
            await _connected(met, "guess")
        client = await _connected(met, "secret")
        few, many = make_request(3), make_request(4)
        scores = await run_in_thread(lambda: client.predict(few.inputs), "asker")
        with pytest.raises(ServingError) as refused:
            await run_in_thread(lambda: client.predict(many.inputs), "asker")
        client.close()
    finally:
        met.engine.access = None
    assert unknown.value.code is Code.UNAUTHENTICATED
    assert np.array_equal(scores["default"], met.backend.score(few))
    assert refused.value.code is Code.RATE_LIMITED


_ASK = Ask(1, (), "", "", "", "", (), 0, None)


@pytest.mark.parametrize("message", [_ASK, Cancel(1), Rendezvous("key", b"value")])
async def test_who_does_not_say_hello_first_is_turned_away(
    message: Ask | Cancel | Rendezvous, met: Met
) -> None:
    async with _channel(met) as channel:
        channel.send(message)
        answer = await channel.next()
        assert isinstance(answer, Failure)
        assert answer.detail == f"control message {type(message).__name__}: not expected now"
        assert await channel.next() is None


async def test_who_asks_before_it_has_met_its_process_is_turned_away(met: Met) -> None:
    async with _channel(met) as channel:
        channel.send(Hello(""))
        channel.send(_ASK)
        assert isinstance(await channel.next(), Welcome)
        while isinstance(answer := await channel.next(), Rendezvous):
            pass
        assert isinstance(answer, Failure)
        assert answer.detail == "control message Ask: not expected now"


@pytest.mark.slow
async def test_who_never_meets_its_process_leaves_nothing_unheard(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with collective_served(connect_timeout_s=0.5) as met, _channel(met) as channel:
        channel.send(Hello(""))
        while await channel.next() is not None:
            pass
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_an_address_that_is_none_is_the_end_of_its_own_connection(met: Met) -> None:
    async with _channel(met) as channel:
        channel.send(Hello(""))
        for key in ("0/1", "1"):
            channel.send(Rendezvous(key, b"\xff" * 50))
        while await channel.next() is not None:
            pass
    (await _connected(met)).close()


async def test_a_stranger_at_a_caller_s_gloo_port_harms_nobody_else(met: Met) -> None:
    bystander = await _connected(met)
    async with _channel(met) as channel:
        channel.send(Hello(""))
        assert isinstance(await channel.next(), Welcome)
        told = await channel.next()
        assert isinstance(told, Rendezvous)
        # Somewhere in it is a sockaddr_in of 127.0.0.1.
        found = re.search(rb"\x02\x00(..)\x7f\x00\x00\x01", told.value, re.DOTALL)
        assert found is not None
        port = int.from_bytes(found[1], "big")
        for garbage in (b"", b"\xff" * 4096, bytes(4096)):
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(garbage)
                await writer.drain()
                writer.close()
    request = make_request(3)
    with bystander:
        scores = await run_in_thread(lambda: bystander.predict(request.inputs), "asker")
    assert np.array_equal(scores["default"], met.backend.score(request))


@pytest.mark.slow
async def test_who_asks_and_does_not_read_is_read_no_further(met: Met) -> None:
    def flood(client: CollectiveClient) -> None:
        asks = encode(Ask(1, (), "nobody's", "", "", "", (), 0, None)) * 1000
        client._socket.settimeout(1.0)
        while True:
            client._socket.sendall(asks)

    with await _connected(met) as client:
        with pytest.raises(TimeoutError):
            await run_in_thread(lambda: flood(client), "flood")
        for session in met.transport._sessions.values():
            assert session._channel._writer.transport.get_write_buffer_size() < 1 << 20
    (await _connected(met)).close()


@pytest.mark.slow
async def test_tensors_that_do_not_come_are_waited_for_only_so_long(peers: Peers) -> None:
    async with collective_served(transfer_timeout_s=0.5) as met:
        peer = peers.act("stall", address=met.url, announced_bytes=1000)
        assert (await peer.said("code"))[0] == "unavailable"
        await met.recorder.until(lambda: len(met.recorder.answers) == 1)
        assert met.recorder.answers[0].code is Code.CANCELLED


@pytest.mark.slow
async def test_who_connects_and_says_nothing_is_let_go() -> None:
    async with collective_served(connect_timeout_s=0.3) as met, _channel(met) as channel:
        answer = await channel.next()
        assert isinstance(answer, Failure)
        assert answer.detail == "not connected within 0.3 s (option connect_timeout_s)"


@pytest.mark.slow
async def test_a_stop_answers_what_is_under_way_and_refuses_what_comes_after() -> None:
    async with contextlib.AsyncExitStack() as clients, collective_served() as met:
        gate = met.hold()
        busy, idle = await _connected(met), await _connected(met)
        clients.enter_context(busy)
        clients.enter_context(idle)
        request = make_request(5)
        asking = run_in_thread(lambda: busy.predict(request.inputs), "asker")
        run = await gate.began()
        stopping = asyncio.create_task(met.transport.stop(10.0))
        with pytest.raises(ServingError) as refused:
            await run_in_thread(lambda: idle.predict(request.inputs), "late")
        run.finish()
        scores = (await asking)["default"]
        await stopping
        with pytest.raises(ServingError) as after:
            await run_in_thread(lambda: busy.predict(request.inputs), "later")
    assert np.array_equal(scores, met.backend.score(request))
    assert {refused.value.code, after.value.code} == {Code.UNAVAILABLE}
    assert refused.value.detail == "the server is shutting down"


@pytest.mark.slow
async def test_callers_have_processes_again_after_the_one_they_come_from_was_killed() -> None:
    async with collective_served() as met:
        client = await _connected(met)
        house = met.transport._house
        assert house is not None
        assert house.nursery._process is not None
        house.nursery._process.kill()
        await house.nursery._process.wait()
        request = make_request(2)
        scores = [await run_in_thread(lambda: client.predict(request.inputs), "before")]
        other = await _connected(met)
        scores.append(await run_in_thread(lambda: other.predict(request.inputs), "after"))
        client.close()
        other.close()
    for each in scores:
        assert np.array_equal(each["default"], met.backend.score(request))
