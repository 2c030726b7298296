"""The collective transport: callers of a cluster, met by torch.distributed."""

import asyncio
import importlib.util
import logging
import socket
from pathlib import Path

from scheduler.engine import Engine
from scheduler.errors import Code
from transports.collective.budget import Budget
from transports.collective.carriers import CarrierPlan, Nursery
from transports.collective.channel import Channel
from transports.collective.messages import Failure
from transports.collective.options import CollectiveOptions
from transports.collective.session import House, Session
from transports.collective.uccl import plugin_path

logger = logging.getLogger(__name__)

# A machine that has vanished is noticed after so long.
_KEEPALIVE = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}
_INFINIBAND = Path("/sys/class/infiniband")


class CollectiveTransport:
    """Serve callers that send tensors by gloo or NCCL, each from a process of its own here."""

    Options = CollectiveOptions

    def __init__(self, options: CollectiveOptions) -> None:
        self._options = options
        self._house: House | None = None
        self._server: asyncio.Server | None = None
        self._sessions: dict[asyncio.Task[None], Session] = {}
        self._stopping = False

    async def start(self, engine: Engine) -> tuple[str, ...]:
        """Listen; return the address.

        Raises OSError: the port is taken, or PyTorch, NCCL or the plug-in is not there.
        """
        options = self._options
        if importlib.util.find_spec("torch") is None:
            raise OSError("PyTorch is not installed: pip install -e '.[cpu]' or '.[cuda]'")
        plan = CarrierPlan(
            options.backend,
            "cpu" if options.backend == "gloo" else options.device,
            plugin_path(_INFINIBAND) if options.nccl_plugin else "",
            options.max_message_bytes,
            options.transfer_timeout_s,
        )
        nursery = Nursery(plan)
        budget = Budget(options.max_message_bytes, options.max_buffered_bytes)
        self._house = House(engine, options, nursery, budget)
        self._server = await asyncio.start_server(self._come, options.host, options.port)
        try:
            await nursery.start()
        except OSError:
            self._server.close()
            raise
        return tuple(sorted(_url(bound) for bound in self._server.sockets))

    async def stop(self, grace_s: float) -> None:
        """Take no more requests, finish those under way in ``grace_s`` seconds, close."""
        if self._server is None or self._house is None:
            return
        self._stopping = True
        self._server.close()
        for session in tuple(self._sessions.values()):
            session.close()
        if self._sessions:
            _, late = await asyncio.wait(tuple(self._sessions), timeout=grace_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        await self._house.nursery.close()

    async def _come(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one caller, unless there are too many."""
        assert self._house is not None
        channel = Channel(reader, writer)
        if refusal := self._refusal():
            channel.send(refusal)
            channel.close()
            return
        _keep_alive(writer.get_extra_info("socket"))
        task = asyncio.current_task()
        assert task is not None
        self._sessions[task] = session = Session(self._house, channel)
        try:
            await session.run()
        except asyncio.CancelledError:
            logger.info("a caller was cut off at the stop")
        finally:
            del self._sessions[task]

    def _refusal(self) -> Failure | None:
        """Return what a caller is told that cannot be served now."""
        if self._stopping:
            return Failure(0, Code.UNAVAILABLE.value, "the server is shutting down", None)
        limit = self._options.max_connections
        if len(self._sessions) < limit:
            return None
        detail = (
            f"connections: the limit of {limit} is reached "
            "(option max_connections of the collective transport)"
        )
        return Failure(0, Code.OVERLOADED.value, detail, 1.0)


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _url(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"collective://[{host}]:{port}" if ":" in host else f"collective://{host}:{port}"
