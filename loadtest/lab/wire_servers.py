"""Servers to compare: ours, and the least that the libraries below ours can do.

    python -m loadtest.lab.wire_servers NAME FOLDER

All have the same engine with the fake backend and the same loop; a certificate lies in FOLDER.
Prints the port. ``http3-plain`` is ``aioquic.asyncio.serve`` around our app with a task and a queue
a request, as the library's example server has them. ``http-bare`` is uvicorn around an app that
takes the body and answers a constant; ``http-least`` around one that decodes, asks the engine and
encodes, without limits, errors, headers or a look at whether the client is still there. The others
are ours, in the clear and in TLS.
"""

import argparse
import asyncio
import datetime
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import serve
from aioquic.h3.connection import H3Connection
from aioquic.h3.events import DataReceived, H3Event, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ProtocolNegotiated, QuicEvent
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from backends.fake import FakeBackend, FakeOptions
from loadtest.lab import setting
from loadtest.workload import ModelShape
from scheduler.engine import Engine
from transports.codecs import predict_json, predictor
from transports.grpc.options import GrpcOptions
from transports.grpc.server import GrpcTransport
from transports.http.app import HttpApp
from transports.http.intake import BodyLimits, Intake
from transports.http.server import HttpOptions, HttpTransport
from transports.http.sockets import bind, port_of
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


async def serve_http3(engine: Engine, folder: Path) -> int:
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


async def serve_http(engine: Engine, folder: Path, tls: bool = False) -> int:
    """Serve as ``narsil serve`` does; return the port."""
    certificate, key = _certificate(folder) if tls else ("", "")
    options = HttpOptions(port=0, certificate=certificate, private_key=key)
    (url,) = await HttpTransport(options).start(engine)
    return int(url.rpartition(":")[2])


async def serve_grpc(engine: Engine, folder: Path, tls: bool = False) -> int:
    """Serve as ``narsil serve`` does; return the port."""
    certificate, key = _certificate(folder) if tls else ("", "")
    options = GrpcOptions(port=0, certificate=certificate, private_key=key)
    (url,) = await GrpcTransport(options).start(engine)
    return int(url.rpartition(":")[2])


def _certificate(folder: Path) -> tuple[str, str]:
    files = development_certificate(folder, datetime.datetime.now(datetime.UTC))
    return str(files.certificate), str(files.private_key)


async def serve_bare(engine: Engine, folder: Path) -> int:
    """Serve a constant with uvicorn; return the port."""
    del engine, folder
    constant = bytes(400)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        await _body(receive)
        await _answer(send, constant)

    return await _uvicorn(app)


async def serve_least(engine: Engine, folder: Path) -> int:
    """Serve the engine with uvicorn and nothing between; return the port."""
    del folder
    spec = engine.spec("")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        is_json = (b"content-type", b"application/json") in scope["headers"]
        body = await _body(receive)
        if is_json:
            response = await engine.infer(predict_json.decode_request(body, spec))
            await _answer(send, predict_json.encode_response(response))
        else:
            response = await engine.infer(predictor.decode_request(body, spec.name))
            await _answer(send, predictor.encode_response(response))

    return await _uvicorn(app)


async def _body(receive: Receive) -> bytes:
    chunks = []
    while True:
        message = await receive()
        chunks.append(message["body"])
        if not message.get("more_body", False):
            return b"".join(chunks)


async def _answer(send: Send, body: bytes) -> None:
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _uvicorn(app: ASGIApp) -> int:
    bound = bind(_HOST, 0, socket.SOCK_STREAM)
    config = Config(app, http="httptools", ws="none", lifespan="off", log_config=None)
    config.load()
    state = ServerState()
    await asyncio.get_running_loop().create_server(
        lambda: HttpToolsProtocol(config, state, {}), sock=bound
    )
    return port_of(bound)


SERVERS: dict[str, Callable[[Engine, Path], Awaitable[int]]] = {
    "http3": serve_http3,
    "http3-plain": serve_plain,
    "http": serve_http,
    "http-bare": serve_bare,
    "http-least": serve_least,
    "http-tls": partial(serve_http, tls=True),
    "grpc": serve_grpc,
    "grpc-tls": partial(serve_grpc, tls=True),
}


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
