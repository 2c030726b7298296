"""The collective transport and callers in processes of their own, honest ones and others."""

import asyncio
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.collective.serving import LIMIT, Met, Peers, collective_served
from tests.fixtures.gates import make_request

pytestmark = pytest.mark.asyncio(loop_scope="package")

_PAGE = Path(__file__).parents[2] / "docs" / "collective.md"


async def _is_served(met: Met, peers: Peers, seed: int = 3) -> bool:
    """Return whether a new caller gets the right scores."""
    peer = peers.act("predict", address=met.url, rows=5, seed=seed)
    return np.array_equal(await peer.said("scores"), met.backend.score(make_request(5, seed)))


async def test_a_caller_in_another_process_gets_the_scores_of_its_rows(
    met: Met, peers: Peers
) -> None:
    for rows in (0, 1, 100):
        peer = peers.act("predict", address=met.url, rows=rows, seed=rows)
        right = met.backend.score(make_request(rows, rows))
        assert np.array_equal(np.array(await peer.said("scores"), np.float32), right)


async def test_many_callers_come_ask_and_go_each_with_its_own_scores(
    met: Met, peers: Peers
) -> None:
    asking = [
        peers.act("predict", address=met.url, rows=3, seed=100 * number, times=3)
        for number in range(4)
    ]
    for number, peer in enumerate(asking):
        for seed in range(100 * number, 100 * number + 3):
            assert np.array_equal(
                await peer.said("scores"), met.backend.score(make_request(3, seed))
            )
        await peer.said("ended")


async def test_more_than_announced_ends_its_own_process_and_nobody_elses(
    met: Met, peers: Peers
) -> None:
    bystander = peers.act("predict", address=met.url, rows=2, seed=0, times=40)
    await bystander.said("seed")
    liar = peers.act("lie", address=met.url, announced_bytes=1000, sent_bytes=200_000)
    code, detail = await liar.said("code")
    assert code == "unavailable"
    assert detail.startswith("the tensors cannot travel: the process for this caller has ended")
    for seed in range(1, 40):
        right = met.backend.score(make_request(2, seed))
        assert np.array_equal(await bystander.said("scores"), right)


async def test_less_than_announced_is_refused_whatever_it_holds(met: Met, peers: Peers) -> None:
    liar = peers.act("lie", address=met.url, announced_bytes=1000, sent_bytes=500)
    code, detail = await liar.said("code")
    assert code == "invalid_request"
    assert "the 1000 bytes announced did not come" in detail


async def test_what_is_too_large_is_refused_before_anything_is_received(
    met: Met, peers: Peers
) -> None:
    liar = peers.act("lie", address=met.url, announced_bytes=LIMIT + 1, sent_bytes=0)
    code, detail = await liar.said("code")
    assert code == "payload_too_large"
    assert detail == (
        f"message has {LIMIT + 1} bytes, the limit is {LIMIT} "
        "(option max_message_bytes of the collective transport)"
    )


async def test_a_caller_killed_before_its_tensors_came_is_forgotten(met: Met, peers: Peers) -> None:
    before = len(met.recorder.answers)
    peer = peers.act("stall", address=met.url, announced_bytes=LIMIT)
    pid = await peer.said("pid")
    await peer.said("proceed")
    held = peers.act("predict", address=met.url, rows=1, seed=0)
    assert (await held.said("code"))[0] == "overloaded"  # the announced bytes are spoken for
    os.kill(pid, signal.SIGKILL)
    await met.recorder.until(lambda: len(met.recorder.answers) >= before + 2)
    assert await _is_served(met, peers)


async def test_the_documentation_s_example_runs(met: Met, peers: Peers) -> None:
    found = re.search(r"```python\n(.*?)```", _PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    source = found[1].replace("127.0.0.1:50061", met.url)
    assert met.url in source
    assert len(await peers.act("example", source=source).said("scores")) == 2


@pytest.mark.slow
async def test_callers_killed_while_they_ask_leave_nothing_behind(peers: Peers) -> None:
    async with collective_served(max_connections=32) as met:
        asking = [
            peers.act("predict", address=met.url, rows=50, seed=1000 * number, times=20)
            for number in range(12)
        ]
        doomed, others = asking[::2], asking[1::2]
        for turn, peer in enumerate(doomed):
            pid = await peer.said("pid")
            for _ in range(turn + 1):
                await peer.said("asking")
            os.kill(pid, signal.SIGKILL)
        for number, peer in enumerate(others):
            first = 1000 * (2 * number + 1)
            for seed in range(first, first + 20):
                right = met.backend.score(make_request(50, seed))
                assert np.array_equal(await peer.said("scores"), right)
        while met.transport._sessions:
            await asyncio.wait(met.transport._sessions)
        house = met.transport._house
        assert house is not None
        assert house.budget._held_bytes == 0
        assert met.recorder.queued_rows == 0
