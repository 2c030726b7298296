"""The operators' listener: their page, probes, metrics, model descriptions, off the traffic."""

import socket
from dataclasses import dataclass, field

from scheduler.engine import Engine
from transports.http.deltas import DeltasApp, delta_paths
from transports.http.embeddings import embedding_pages
from transports.http.intake import BodyLimits, Intake
from transports.http.listener import Listener, ListenerOptions
from transports.http.openapi import Schema
from transports.http.page.app import PlaygroundApp
from transports.http.page.routes import page_routes
from transports.http.pages import document, pages
from transports.http.ranges import PORTS, check_range
from transports.http.sockets import bind, port_of, url
from transports.http.unsent import Unsent

LISTENER = ListenerOptions(backlog=128, max_connections=1024)
MAX_UNSENT_BYTES = 64 * 1024 * 1024

# What one turn of the event loop may take of a large delta: requests have their turn in between.
RECEIVE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class AdminOptions:
    """Say where operators connect; keep it off public networks."""

    host: str = field(default="127.0.0.1", metadata={"help": "address to listen on"})
    port: int = field(default=9090, metadata={"help": "TCP port; 0: any free one"})
    updates: bool = field(
        default=False, metadata={"help": "let whoever reaches it replace rows of embedding tables"}
    )

    def __post_init__(self) -> None:
        """Refuse what could not work. Raises ValueError."""
        check_range("port", self.port, PORTS)


class AdminTransport:
    """Serve every page, and no predictions but those of the playground."""

    Options = AdminOptions

    def __init__(self, options: AdminOptions) -> None:
        self._options = options
        self._intake = Intake(BodyLimits())
        self._deltas: DeltasApp | None = None
        self._listener: Listener | None = None

    async def start(self, engine: Engine) -> tuple[str, ...]:
        """Listen; return the URL with the real port. Raises OSError that names a taken port."""
        bound = bind(self._options.host, self._options.port, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        app = pages(engine, metrics=True)
        app.include_router(embedding_pages(engine, writable=self._options.updates))
        app.include_router(page_routes(engine, self._options.host))
        document(app, lambda schema: _with_deltas(schema, engine))
        playground = PlaygroundApp(app, engine, self._intake, self._options.host)
        self._deltas = DeltasApp(playground, engine, writable=self._options.updates)
        self._listener = Listener(self._deltas, LISTENER, Unsent(MAX_UNSENT_BYTES))
        await self._listener.start(bound)
        return (url("http", self._options.host, port_of(bound)),)

    async def stop(self, grace_s: float) -> None:
        """Take nothing more, answer what is under way within ``grace_s`` seconds, cut the rest."""
        self._intake.close()
        if self._deltas is not None:
            self._deltas.close()
        if self._listener is not None:
            await self._listener.stop(grace_s)


def _with_deltas(schema: Schema, engine: Engine) -> Schema:
    specs = engine.specs()
    paths = dict(schema["paths"])
    for path, item in delta_paths(specs[0].name if specs else "dlrm").items():
        paths[path] = paths.get(path, {}) | item
    return schema | {"paths": paths}
