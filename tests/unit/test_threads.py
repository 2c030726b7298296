"""Work off the event loop, on a thread that stays and ends with whoever had it."""

import asyncio
import gc
import threading
from functools import partial

import pytest

from scheduler.threads import Worker


async def test_a_worker_does_everything_on_one_thread_in_order() -> None:
    worker, order = Worker("worker"), list[int]()

    def note(number: int) -> threading.Thread:
        order.append(number)
        return threading.current_thread()

    threads = await asyncio.gather(*(worker.run(partial(note, n)) for n in range(20)))
    assert order == list(range(20))
    assert len(set(threads)) == 1
    assert threads[0] is not threading.current_thread()
    assert threads[0].daemon


async def test_what_it_is_given_may_fail_and_the_next_is_done() -> None:
    worker = Worker("worker")

    def fail() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        await worker.run(fail)
    assert await worker.run(lambda: 7) == 7


async def test_it_ends_after_its_work_when_nobody_has_it_any_more() -> None:
    worker, gate = Worker("worker"), threading.Event()
    last = worker.run(lambda: (gate.wait(30), threading.current_thread())[1])
    del worker
    gc.collect()
    gate.set()
    thread = await last
    await asyncio.to_thread(thread.join, 30)
    assert not thread.is_alive()
