"""A disconnect cancels the work, and only a disconnect is reported as one."""

import asyncio

import pytest
from starlette.types import Message

from scheduler.errors import Code, ServingError
from transports.http.disconnect import unless_client_leaves


class Client:
    """An ASGI ``receive`` after the body: it says disconnect when the test lets it."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    async def __call__(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}


class Work:
    """Something to wait for, that notes its own end."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.finish = asyncio.Event()
        self.cancelled = False

    async def run(self) -> str:
        self.begun.set()
        try:
            await self.finish.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return "done"


async def test_work_that_ends_first_is_returned_and_leaves_no_task() -> None:
    work, before = Work(), asyncio.all_tasks()
    work.finish.set()
    assert await unless_client_leaves(work.run(), Client()) == "done"
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_a_disconnect_cancels_the_work_and_says_so() -> None:
    work, client = Work(), Client()
    task = asyncio.create_task(unless_client_leaves(work.run(), client))
    await work.begun.wait()
    client.gone.set()
    with pytest.raises(ServingError) as raised:
        await task
    assert raised.value.code is Code.CANCELLED
    assert work.cancelled
    assert task.cancelling() == 0


async def test_a_cancel_from_elsewhere_stays_a_cancel() -> None:
    work, before = Work(), asyncio.all_tasks()
    task = asyncio.create_task(unless_client_leaves(work.run(), Client()))
    await work.begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.cancelled
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_a_disconnect_in_the_same_turn_as_the_result_harms_nothing_after() -> None:
    work, client = Work(), Client()

    async def serve() -> str:
        try:
            answer = await unless_client_leaves(work.run(), client)
        except ServingError as error:
            answer = error.code.value
        await asyncio.sleep(0)  # a cancel left over would strike here
        return answer

    task = asyncio.create_task(serve())
    await work.begun.wait()
    work.finish.set()
    client.gone.set()
    assert await task in {"done", "cancelled"}


async def test_an_error_of_the_work_passes_through() -> None:
    async def fail() -> None:
        raise ServingError(Code.OVERLOADED, "full")

    with pytest.raises(ServingError, match="full"):
        await unless_client_leaves(fail(), Client())
