"""A front end: the transports of ``narsil serve`` in a process of their own, without a model.

``python -P -m app.frontends.start DESCRIPTOR``: the socket on which the engine says what to run.
"""

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any

import orjson
import uvloop

from app import plugins, streams
from app.access.guard import guard_of
from app.access.ledger import Ledger
from app.frontends.channel import Channel
from app.frontends.client import RemoteEngine
from app.frontends.heart import Heart
from app.frontends.reporter import Reporter
from app.frontends.settings import MAX_SETTINGS_BYTES, FrontEndSettings
from app.frontends.slots import Arena
from app.frontends.wire import Frame, Kind
from app.memory import settle_memory
from app.open_files import allow_open_files
from app.settings import ConfigError, Setting, make_section
from app.tracing.tracing import traced
from transports.base import Transport
from transports.sharing import Share

logger = logging.getLogger(__name__)

# The engine is gone: what is answered by now may still leave.
_LOST_GRACE_S = 0.5


def main() -> int:
    """Run until told to stop, or until the engine is gone; return the exit code."""
    # The engine's process says when to stop: these may be meant for all of a group.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    streams.fill_standard()
    connected = socket.socket(fileno=int(sys.argv[1]))
    said = connected.recv(MAX_SETTINGS_BYTES)
    if not said:
        return 1
    settings = FrontEndSettings(**orjson.loads(said))
    streams.start_log(settings.log_format)
    for package in ("app", "scheduler", "transports"):
        logging.getLogger(package).setLevel(settings.log_level.upper())
    return uvloop.run(_FrontEnd(settings).run(connected))


class _FrontEnd:
    def __init__(self, settings: FrontEndSettings) -> None:
        self._settings = settings
        self._transports: dict[str, Transport] = {}

    async def run(self, connected: socket.socket) -> int:
        """Serve; return the exit code."""
        allow_open_files()
        reporter = Reporter()
        observer, end = traced(reporter, self._settings.tracing_options)
        engine = RemoteEngine(Arena(self._settings.memory), observer)
        leaving: asyncio.Future[float] = asyncio.get_running_loop().create_future()

        def received(frame: Frame) -> None:
            if frame.kind is Kind.STOP:
                _settle(leaving, orjson.loads(frame.payload))
            elif frame.kind is Kind.TELL:
                reporter.tell()
            else:
                engine.received(frame)

        def lost(why: str) -> None:
            if not leaving.done():
                logger.error("front end %d leaves, the engine is lost: %s",
                             self._settings.number, why)  # fmt: skip
            engine.lost()
            _settle(leaving, -1.0)

        channel = Channel(connected, received, lost)
        engine.connect(channel)
        reporter.connect(channel, engine)
        Heart(channel, self._settings.hung_s, engine.silent)
        try:
            keys, ledger = self._settings.api_keys, self._settings.ledger
            known = Ledger(ledger) if ledger >= 0 else None
            engine.access = guard_of(keys, observer.keyed, known)
            addresses = await self._listen(engine)
        except (OSError, ConfigError, plugins.PluginError) as error:
            channel.send(Frame(Kind.FAILED, 0, orjson.dumps(str(error))))
            channel.flush()
            return 1
        channel.send(Frame(Kind.READY, 0, orjson.dumps(addresses)))
        settle_memory()
        grace_s = await leaving
        given_s = grace_s if grace_s >= 0 else _LOST_GRACE_S
        await asyncio.gather(*(one.stop(given_s) for one in self._transports.values()))
        reporter.flush()
        channel.flush()
        await end()
        return 0 if grace_s >= 0 else 1

    async def _listen(self, engine: RemoteEngine) -> dict[str, tuple[str, ...]]:
        """Start every transport. Raises OSError or ConfigError."""
        addresses = {}
        for name, options in self._settings.transports.items():
            transport = _build(name, options)
            # Whoever asked for front ends has seen that it can be shared.
            transport.share = Share(*self._settings.shares[name])
            self._transports[name] = transport
            addresses[name] = await transport.start(engine)
        return addresses


def _build(name: str, options: Mapping[str, Any]) -> Any:
    plugin = plugins.transport(name)
    given = {key: Setting(value, "the engine") for key, value in options.items()}
    return plugin.build(make_section(name, plugin.options, given).options)


def _settle(leaving: asyncio.Future[float], grace_s: float) -> None:
    if not leaving.done():
        leaving.set_result(grace_s)
