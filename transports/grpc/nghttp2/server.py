"""The methods on libnghttp2: listen, watch the connections, drain."""

import asyncio
import contextlib
import random
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence

import grpc

from scheduler.errors import Code, ServingError
from transports.grpc.listen import BACKLOG, bound_sockets
from transports.grpc.methods import Methods, Reply
from transports.grpc.nghttp2 import limits
from transports.grpc.nghttp2.budget import Budget
from transports.grpc.nghttp2.connection import Connection
from transports.grpc.options import GrpcOptions
from transports.sharing import Share
from transports.tls import RenewedContext
from transports.unix import listening_socket

# The end of the grace is for the last answers, which say so, to leave; without one it is the least.
_FLUSH_S = 0.5
_LEAST_FLUSH_S = 0.1
_CUT = Reply(grpc.StatusCode.UNAVAILABLE, detail="the server stopped before there was an answer")


class Nghttp2Server:
    """Serve ``methods``; with a ``share`` other processes do so on the same port, or path."""

    def __init__(self, options: GrpcOptions, methods: Methods, share: Share | None = None) -> None:
        self._options = options
        self._share = share
        self._methods = methods
        self._budget = Budget(options.max_buffered_bytes)
        self._unix = options.unix_address
        self._loop = asyncio.get_running_loop()
        self._listeners: list[asyncio.Server] = []
        self._connections: set[Connection] = set()
        self._steps: dict[Connection, asyncio.TimerHandle] = {}  # the next of a connection's age
        self._all_lost = asyncio.Event()
        self._sweeping: asyncio.Task[None] | None = None

    async def start(self) -> tuple[str, ...]:
        """Listen and serve; return the addresses.

        Raises OSError for a taken port or path, or an unusable certificate.
        """
        try:
            return tuple([address async for address in self._listen()])
        except OSError:
            await self.stop(0, 0, lambda: None)  # what listens already
            raise

    async def _listen(self) -> AsyncIterator[str]:
        options = self._options
        if options.host:
            tls = RenewedContext.of(options.tls_files, ["h2"]) if options.tls_files else None
            bound, address = await bound_sockets(
                options.host, options.port, shared=self._share is not None
            )
            await self.serve(bound, tls)
            yield f"{'grpcs' if tls else 'grpc'}://{address}"
        if self._unix is not None:
            shared = self._share.unix_socket if self._share else None
            claim = self._unix.claim
            await self.serve([shared or claim(lambda path: listening_socket(path, BACKLOG))])
            yield self._unix.url

    async def serve(
        self, bound: Sequence[socket.socket], tls: ssl.SSLContext | None = None
    ) -> None:
        """Serve on sockets of any family, in TLS if ``tls``, whose ALPN must offer ``h2``."""
        patience_s = None if tls is None else limits.HANDSHAKE_S
        for each in bound:
            self._listeners.append(
                await self._loop.create_server(
                    self._connection,
                    sock=each,
                    ssl=tls,
                    backlog=BACKLOG,
                    ssl_handshake_timeout=patience_s,
                )
            )
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._sweep())

    async def stop(self, hold_s: float, grace_s: float, refuse: Callable[[], None]) -> None:
        """Accept no more, say GOAWAY, ``refuse`` what comes later than ``hold_s``, finish the rest.

        Takes ``hold_s`` and ``grace_s`` at most, but for the least that the last answers need.

        Calls on the wire when a client hears of the end are served: GOAWAY first names no last
        stream, and after ``hold_s`` the last that came.
        """
        if self._unix is not None:
            self._unix.release()
        for listener in self._listeners:
            listener.close()
        for connection in tuple(self._connections):
            connection.announce_end()
        await self._all_lost_within(hold_s)
        refuse()
        for connection in tuple(self._connections):
            connection.end_after_calls()
        flush_s = max(_LEAST_FLUSH_S, min(_FLUSH_S, grace_s / 4))
        await self._all_lost_within(max(0, grace_s - flush_s))
        for connection in tuple(self._connections):
            _cut(connection)
        await self._all_lost_within(flush_s)
        for connection in tuple(self._connections):
            connection.abort()
        await self._all_lost_within(_LEAST_FLUSH_S)  # it takes a turn of the loop
        if self._sweeping is not None:
            self._sweeping.cancel()

    def _connection(self) -> asyncio.Protocol:
        if len(self._connections) >= self._options.max_connections:
            return _TurnedAway()
        return Connection(self._options, self._methods, self._budget, self._made, self._lost)

    def _made(self, connection: Connection) -> None:
        self._connections.add(connection)
        age_s = self._options.max_connection_age_s
        if age_s:
            # Not all at once: connections that began together would come back together.
            jitter = random.uniform(0.9, 1.1)  # noqa: S311
            self._later(age_s * jitter, self._retire, connection)

    def _later(
        self, seconds: float, step: Callable[[Connection], None], connection: Connection
    ) -> None:
        self._steps[connection] = self._loop.call_later(seconds, step, connection)

    def _retire(self, connection: Connection) -> None:
        """Have a client that has been here for long connect anew, without failing a call."""
        connection.announce_end()
        self._later(min(1.0, self._options.max_connection_age_s), self._retired, connection)

    def _retired(self, connection: Connection) -> None:
        connection.end_after_calls()
        self._later(self._options.max_connection_age_s, _cut, connection)

    def _lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        step = self._steps.pop(connection, None)
        if step is not None:
            step.cancel()
        if not self._connections:
            self._all_lost.set()

    async def _all_lost_within(self, seconds: float) -> None:
        self._all_lost.clear()
        if self._connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_lost.wait(), seconds)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(limits.SWEEP_S)
            now_s = time.perf_counter()
            for connection in tuple(self._connections):
                _look(connection, now_s)


class _TurnedAway(asyncio.Protocol):
    """A connection too many: gRPC's clients call that UNAVAILABLE and try again later."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Close at once."""
        transport.abort()


def _cut(connection: Connection) -> None:
    for call in tuple(connection.calls.values()):
        call.cut(_CUT)
    connection.end_after_calls()


def _look(connection: Connection, now_s: float) -> None:
    """Part with a client that keeps us waiting."""
    connection.idle_frames = 0
    if connection.output.closed:  # and it does not read the rest
        if now_s - connection.output.moved_s > _FLUSH_S:
            connection.abort()
        return
    if not connection.output.stuck:
        connection.output.moved_s = now_s
    silent_s = now_s - connection.heard_s
    if _hopeless(connection, now_s):
        connection.abort()
    elif silent_s > limits.SILENCE_S:
        connection.ping()
    for call in tuple(connection.calls.values()):
        if call.owes_bytes and now_s - call.heard_s > limits.MESSAGE_STALL_S:
            call.refuse(_stalled())


def _hopeless(connection: Connection, now_s: float) -> bool:
    """Return whether the client never spoke, reads nothing, or is gone without a word."""
    never_spoke = not connection.greeted and now_s - connection.made_s > limits.HANDSHAKE_S
    reads_nothing = now_s - connection.output.moved_s > limits.WRITE_STALL_S
    gone = now_s - connection.heard_s > limits.SILENCE_S + limits.PONG_S
    return never_spoke or reads_nothing or gone


def _stalled() -> ServingError:
    return ServingError(
        Code.DEADLINE_EXCEEDED, f"no part of the message came for {limits.MESSAGE_STALL_S:g} s"
    )
