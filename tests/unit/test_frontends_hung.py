"""What becomes of requests, and of reports, while one side of the channel hangs."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from app.frontends.channel import Channel
from app.frontends.heart import Heart
from app.frontends.wire import Frame, Kind
from scheduler.errors import Code, ServingError
from scheduler.observer import Answered
from tests.fixtures.far_engine import Far, Held, far, until
from tests.fixtures.gates import make_request


@pytest.fixture
async def both() -> AsyncIterator[Far]:
    """An engine and a front end's."""
    async with far() as both:
        yield both


def hang(channel: Channel) -> None:
    """Have whoever holds this end hear nothing."""
    asyncio.get_running_loop().remove_reader(channel._socket)


def go_on(channel: Channel) -> None:
    """Have it hear again."""
    asyncio.get_running_loop().add_reader(channel._socket, channel._readable)


async def test_silence_is_told_once_and_again_after_the_other_side_has_been_heard(
    both: Far,
) -> None:
    told: list[int] = []
    channel = both.to_front_end
    heart = Heart(channel, 0.05, lambda: told.append(channel.received_packets))
    await until(lambda: len(told) == 1)
    both.to_engine.send(Frame(Kind.BEAT))
    await until(lambda: len(told) == 2)
    heart.stop()
    assert told == [told[0], told[0] + 1]


async def test_without_a_limit_nobody_beats(both: Far) -> None:
    before = both.to_engine.received_packets
    Heart(both.to_front_end, 0.0, lambda: None)
    await both.remote.infer(make_request(1))
    assert not [frame for frame in both.heard if frame.kind is Kind.BEAT]
    assert both.to_engine.received_packets > before


async def test_while_the_engine_is_silent_requests_are_refused_and_readiness_is_off(
    both: Far,
) -> None:
    both.backend.before_run = held = Held()
    waiting = asyncio.create_task(both.remote.infer(make_request(1)))
    await held.begun.wait()
    both.remote.silent()
    late = asyncio.create_task(both.remote.infer(make_request(2)))
    for refused in (waiting, late):
        with pytest.raises(ServingError, match="the engine process does not respond") as error:
            await refused
        assert error.value.code is Code.UNAVAILABLE
    assert (both.remote.ready, both.remote.live, both.remote.started) == (False, False, True)
    changed = asyncio.Event()
    both.remote.watch(changed.set)
    both.to_front_end.send(Frame(Kind.BEAT))
    await changed.wait()
    assert (both.remote.ready, both.remote.live) == (True, True)
    held.opened.set()
    assert (await both.remote.infer(make_request(3))).outputs["default"].shape == (3,)
    await until(lambda: not both.remote.slot_bytes and not both.session.slots)


async def test_what_an_engine_that_hangs_has_not_heard_of_is_bounded_and_said_to_be_missing(
    both: Far, caplog: pytest.LogCaptureFixture
) -> None:
    hang(both.to_front_end)
    record = Answered("http", "fake", 3, None, 0.5, detail="d" * 2000)
    reports = 0
    while both.to_engine.waiting_bytes < 4 * 1024 * 1024:
        both.remote.observer.answered(record)
        await asyncio.sleep(0)
        reports += 1
        assert reports < 10_000
    for _ in range(300):
        both.remote.observer.answered(record)
        await asyncio.sleep(0)
    assert both.to_engine.waiting_bytes < 6 * 1024 * 1024
    go_on(both.to_front_end)
    await until(lambda: not both.to_engine.waiting_bytes)
    both.remote.observer.answered(record)
    await both.session.told()
    assert "requests are missing in the metrics: the engine hung" in caplog.text
    assert 0 < reports - len(both.recorder.answers) + 301 <= 600


async def test_what_a_front_end_has_heard_is_counted_before_anybody_looks(both: Far) -> None:
    for number in range(3):
        both.remote.observer.answered(Answered("http", "fake", number, None, 0.5))
    await both.session.told()
    assert [record.rows for record in both.recorder.answers] == [0, 1, 2]


async def test_nobody_waits_for_the_report_of_a_front_end_that_is_gone(both: Far) -> None:
    hang(both.to_engine)
    waiting = asyncio.create_task(both.session.told())
    await asyncio.sleep(0)
    both.to_engine.close()
    await waiting
    await both.session.told()
