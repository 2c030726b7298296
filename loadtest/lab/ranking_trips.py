"""Round trips of ranking requests over HTTP/1.1 on the loopback, server and client on one loop."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from loadtest.lab import setting
from loadtest.lab.bodies import Body
from scheduler.backend import Backend
from scheduler.options import SchedulerOptions
from transports.http.server import HttpOptions, HttpTransport


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection kept alive, on which one request goes after the other."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, body: Body) -> None:
        """Send ``body`` and read its answer. Raises ValueError unless that is 200."""
        head = f"POST {body.path} HTTP/1.1\r\nhost: lab\r\n{body.headers}"
        length = f"content-length: {len(body.content)}\r\n\r\n"
        self.writer.writelines([(head + length).encode(), body.content])
        answer = await self.reader.readuntil(b"\r\n\r\n")
        size = answer.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        await self.reader.readexactly(int(size))
        if not answer.startswith(b"HTTP/1.1 200"):
            raise ValueError(answer.decode())


@contextlib.asynccontextmanager
async def connected(backend: Backend) -> AsyncIterator[Connection]:
    """Serve ``backend``, whose spec is known, over HTTP and connect to it."""
    options = SchedulerOptions(max_request_rows=backend.spec.max_batch_rows)
    async with setting.serving(backend, options) as engine:
        transport = HttpTransport(HttpOptions(port=0))
        (url,) = await transport.start(engine)
        address = urlsplit(url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        try:
            yield Connection(reader, writer)
        finally:
            writer.close()
            await transport.stop(1.0)


async def trip_us(connection: Connection, body: Body, seconds: float) -> float:
    """Return what one round trip takes, repeated for about ``seconds``."""
    count, begun_s = 0, time.perf_counter()
    while True:
        await connection.ask(body)
        count += 1
        elapsed_s = time.perf_counter() - begun_s
        if elapsed_s >= seconds:
            return 1e6 * elapsed_s / count
