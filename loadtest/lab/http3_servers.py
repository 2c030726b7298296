"""Servers to compare over HTTP/3: ours, and aioquic's own around the same app.

    python -m loadtest.lab.http3_servers narsil|plain FOLDER

The same engine with the fake backend, the same ASGI app, the same loop; the certificate lies in
FOLDER. Prints its port. ``plain`` is ``aioquic.asyncio.serve`` with a task and a queue a request,
as the library's example server has them.
"""

import argparse
import asyncio
import datetime
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import serve
from aioquic.h3.connection import H3Connection
from aioquic.h3.events import DataReceived, H3Event, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ProtocolNegotiated, QuicEvent
from starlette.types import ASGIApp, Message

from backends.fake import FakeBackend, FakeOptions
from loadtest.lab import setting
from loadtest.workload import ModelShape
from scheduler.engine import Engine
from transports.http.app import HttpApp
from transports.http.intake import BodyLimits, Intake
from transports.http3.bridge import scope_of
from transports.http3.certificate import development_certificate
from transports.http3.server import Http3Options, Http3Transport

# As many features as the reference preset has.
DENSE, SPARSE, TABLE_ROWS = 13, 26, 1000
SHAPE = ModelShape(
    DENSE, tuple(f"cat_{number}" for number in range(SPARSE)), (TABLE_ROWS,) * SPARSE, "fake"
)
_HOST = "127.0.0.1"


class PlainProtocol(QuicConnectionProtocol):
    """One connection as aioquic's example has it; ``app`` is set by the factory."""

    def __init__(self, app: ASGIApp, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._app = app
        self._http: H3Connection | None = None
        self._queues: dict[int, asyncio.Queue[Message]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def quic_event_received(self, event: QuicEvent) -> None:
        """Turn HTTP/3 events into ASGI messages."""
        if isinstance(event, ProtocolNegotiated):
            self._http = H3Connection(self._quic)
        if self._http is not None:
            for part in self._http.handle_event(event):
                self._take(self._http, part)

    def _take(self, http: H3Connection, part: H3Event) -> None:
        if isinstance(part, HeadersReceived):
            queue = self._queues[part.stream_id] = asyncio.Queue()
            task = asyncio.create_task(self._run(http, part, queue))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if isinstance(part, DataReceived | HeadersReceived):
            data = part.data if isinstance(part, DataReceived) else b""
            message = {"type": "http.request", "body": data, "more_body": not part.stream_ended}
            self._queues[part.stream_id].put_nowait(message)

    async def _run(
        self, http: H3Connection, head: HeadersReceived, queue: asyncio.Queue[Message]
    ) -> None:
        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                status = (b":status", b"%d" % message["status"])
                http.send_headers(head.stream_id, [status, *message["headers"]])
            else:
                more = message.get("more_body", False)
                http.send_data(head.stream_id, message.get("body", b""), end_stream=not more)
            self.transmit()

        await self._app(scope_of(head.headers, None, (_HOST, 0)), queue.get, send)
        del self._queues[head.stream_id]


async def serve_narsil(engine: Engine, folder: Path) -> int:
    """Serve as ``narsil serve`` does; return the port."""
    transport = Http3Transport(Http3Options(port=0, certificate_dir=str(folder)))
    await transport.start(engine)
    return transport.port


async def serve_plain(engine: Engine, folder: Path) -> int:
    """Serve with aioquic's own server; return the port."""
    files = development_certificate(folder, datetime.datetime.now(datetime.UTC))
    configuration = QuicConfiguration(alpn_protocols=["h3"], is_client=False)
    configuration.load_cert_chain(files.certificate, files.private_key)
    app = HttpApp(engine, Intake(BodyLimits()))

    def connect(*args: Any, **options: Any) -> PlainProtocol:
        return PlainProtocol(app, *args, **options)

    server = await serve(_HOST, 0, configuration=configuration, create_protocol=connect)
    assert server._transport is not None  # noqa: SLF001 - it tells its port to nobody
    port: int = server._transport.get_extra_info("sockname")[1]  # noqa: SLF001
    return port


SERVERS: dict[str, Callable[[Engine, Path], Any]] = {"narsil": serve_narsil, "plain": serve_plain}


async def main_async(name: str, folder: Path) -> None:
    """Serve until killed; print the port."""
    options = FakeOptions(
        dense_features=DENSE,
        sparse_features=SPARSE,
        table_rows=TABLE_ROWS,
        remembered_batches=0,
    )
    async with setting.serving(FakeBackend(options)) as engine:
        port = await SERVERS[name](engine, folder)
        setting.settle_memory()
        print(port, flush=True)
        await asyncio.Event().wait()


def main(argv: Sequence[str] | None = None) -> None:
    """Serve the contestant that ``argv`` names."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("server", choices=SERVERS)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args(argv)
    setting.run(main_async(arguments.server, arguments.folder))


if __name__ == "__main__":
    main()
