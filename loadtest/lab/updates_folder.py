"""Apply the deltas of a folder, as the server's watch does, and let go of them."""

import asyncio
from pathlib import Path

from scheduler.engine import Engine
from scheduler.threads import Worker, run_in_thread
from transports import updates

# Oftener than the server looks, so that what comes evenly is applied evenly.
_LOOK_S = 0.02


async def watch(engine: Engine, folder: Path) -> None:
    """Apply what is renamed into ``folder``, in the order of the names; for ever."""
    worker = Worker("delta")
    while True:
        for path in await run_in_thread(lambda: sorted(folder.glob("*.arrow")), "deltas"):
            body = await run_in_thread(path.read_bytes, "deltas")
            delta = await updates.decode(engine, [body], worker, is_json=False)
            del body
            await updates.apply(engine, delta)
            await run_in_thread(path.unlink, "deltas")
        await asyncio.sleep(_LOOK_S)
