"""The least that an answer from a compute thread can cost, and from the loop itself."""

import asyncio
import queue
import threading
import time

# When the other side began and ended, perf_counter's seconds.
Stamps = tuple[float, float]


class HandOff:
    """Hand items to a thread and back: one SimpleQueue, one callback for all that it found.

    No check, no order, no bound, no deadline: what is left if a scheduler does nothing at all.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._inbox: queue.SimpleQueue[asyncio.Future[Stamps] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="floor", daemon=True)
        self._thread.start()

    async def ask(self) -> Stamps:
        """Hand one item over; return when the thread began and ended."""
        future: asyncio.Future[Stamps] = self._loop.create_future()
        self._inbox.put(future)
        return await future

    def stop(self) -> None:
        """End the thread; nothing may be under way."""
        self._inbox.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while (first := self._inbox.get()) is not None:
            began_s = time.perf_counter()
            found = [first]
            while not self._inbox.empty():
                future = self._inbox.get()
                if future is not None:
                    found.append(future)
            self._loop.call_soon_threadsafe(_answer, found, (began_s, time.perf_counter()))


async def inline() -> Stamps:
    """Do nothing on the loop; return when that began and ended."""
    began_s = time.perf_counter()
    return began_s, time.perf_counter()


def _answer(futures: list[asyncio.Future[Stamps]], stamps: Stamps) -> None:
    for future in futures:
        if not future.done():
            future.set_result(stamps)
