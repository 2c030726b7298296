"""A server with half a processor and clients who want more than that."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import numpy as np
import pytest

from tests.abuse.victim import FAKE, others_are_served, victim
from tests.bad_days import quota
from tests.bad_days.test_process import cpu_s
from tests.e2e.clients import load, served_by
from tests.fixtures.requests import random_request
from tests.fixtures.wires import connect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(110)]

CLIENTS = ("grpc", "http-json", "http-protobuf", "grpc", "http-json", "http-protobuf")
LOAD_S = 4.0


@pytest.fixture(params=["control group", "stopped every other moment"])
def by_group(request: pytest.FixtureRequest) -> Iterator[bool]:
    yield request.param == "control group"
    quota.forget_groups()


async def test_on_half_a_core_answers_are_right_the_server_ready_and_its_end_orderly(
    tmp_path: Path, by_group: bool
) -> None:
    with ExitStack() as undo:
        with quota.born_on_half_a_core() if by_group else ExitStack() as grouped:
            if by_group and not grouped:
                pytest.skip("control groups cannot be made here")
            process = undo.enter_context(victim(tmp_path, "--server-drain-delay-s=0"))
        served = served_by(process.urls, tmp_path)
        requests = [random_request(served.backend.spec, 3, seed=seed) for seed in range(5)]
        stop, begun, used_s = asyncio.Event(), asyncio.get_running_loop().time(), cpu_s(process)
        async with AsyncExitStack() as stack:
            if not by_group:
                pid = process.popen.pid
                await stack.enter_async_context(quota.stopped_half_the_time(pid))
            wires = [await stack.enter_async_context(connect(name, served)) for name in CLIENTS]
            loads = [
                asyncio.create_task(load(wire, served.backend.spec, requests, stop))
                for wire in wires
            ]
            await asyncio.sleep(LOAD_S / 2)
            await others_are_served(process)  # among the others, within their time
            await asyncio.sleep(max(0.0, begun + LOAD_S - asyncio.get_running_loop().time()))
            stop.set()
            answers = [pair for each in await asyncio.gather(*loads) for pair in each]
            used_s = cpu_s(process) - used_s
            assert used_s < 0.5 * (asyncio.get_running_loop().time() - begun) + 0.3
            assert len(answers) > len(CLIENTS)
            for asked, answer in answers:
                assert not answer.codes, answer.detail
                assert np.array_equal(answer.scores["default"], FAKE.score(asked))
            process.terminate()
            code, log = await asyncio.to_thread(process.wait)
    assert code == 0, log
    # It was slow, and nothing took that for being stuck.
    assert not re.search(r" ERROR |has been running|Traceback", log), log
