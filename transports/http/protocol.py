"""HTTP/1.1 on one connection, with what a server on its own needs: bounds and JSON errors."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from scheduler.errors import ServingError
from transports.http.connection import Connection
from transports.http.flow import HoldableFlow
from transports.http.idle import Idle
from transports.http.inference import Inference
from transports.http.parsing import Parsing
from transports.http.problem import HttpError
from transports.http.refusal import refusal
from transports.http.request_head import RequestHead
from transports.http.turns import Turn, Turns
from transports.http.unsent import Unsent

# Requests that may wait for the answers before theirs. What a client sends beyond stays unparsed,
# and then unread: parsed, 270 KiB of small requests are 23 MB.
MAX_PIPELINED = 16
# The parser cannot stop within a piece, so one outside a body is short: it adds few requests.
PIECE_BYTES = 512
# How long a refused client may take to read its answer before the connection is cut.
LINGER_S = 2.0


class HttpProtocol(Connection):
    """One connection. ``head_timeout_s`` bounds waiting for a request's head, also the first.

    Requests have their turns one after the other. A fault in what a client sends ends the reading,
    not the answers to what came before it.
    """

    def __init__(
        self,
        config: Config,
        state: ServerState,
        head_timeout_s: float,
        unsent: Unsent,
        on_lost: Callable[[], None],
        inference: Inference | None = None,
    ) -> None:
        super().__init__(state.default_headers)
        self._loop = asyncio.get_running_loop()
        self._turns = Turns(config.loaded_app, inference)
        self._keep_alive_s = config.timeout_keep_alive
        self._state = state
        self._head_timeout_s = head_timeout_s
        self._unsent = unsent
        self._on_lost = on_lost
        self._parsing = Parsing(self._begin)
        self._timer: asyncio.TimerHandle | None = None
        self._unparsed = memoryview(b"")
        self._deaf = self._last = False
        self._bad_body: HttpError | None = None
        self._cut: ServingError | None = None
        self._running: Turn | None = None
        self._due: Turn | None = None  # to begin once what has come is parsed
        self._latest: Turn | None = None  # of those that have been parsed
        self.pipeline: deque[Turn] = deque()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock for the first request."""
        self.transport = transport
        self.flow = HoldableFlow(transport)
        self._idle = Idle(self._loop, self._keep_alive_s, transport.close)
        self._state.connections.add(self)  # type: ignore[arg-type] # uvicorn knows its own ones
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request being answered, also when others were pipelined behind it."""
        del exc
        self._state.connections.discard(self)
        self._stop_timer()
        self._idle.stop()
        self._unsent.forget(self)
        self.flow.resume_writing()
        if self._running is not None:
            self._running.leave()
        self._running = self._latest = None  # their bodies need not wait for the collector
        self.pipeline.clear()
        self._parsing.close()
        self._on_lost()

    def data_received(self, data: bytes) -> None:
        """Parse; refuse what never becomes a request."""
        if not self._deaf:
            left = self._unparsed
            self._unparsed = memoryview(b"".join((left, data)) if left else data)
            self._parse_on()
            self._begin_due()

    def pause_writing(self) -> None:
        """Let answers wait: the client does not take them."""
        self.flow.pause_writing()

    def resume_writing(self) -> None:
        """Let answers go on."""
        self.flow.resume_writing()

    @property
    def unsent_bytes(self) -> int:
        """What the kernel has not taken yet."""
        return self.transport.get_write_buffer_size()

    def cut_unread(self) -> None:
        """Close the connection on an answer that nobody reads."""
        self.transport.abort()

    def shutdown(self) -> None:
        """Close after the answers to what has been parsed."""
        if self._unparsed:
            self._stop_parsing()
        if self._latest is None or self._latest.complete:
            self.transport.close()
        else:
            self._latest.close_after()

    @property
    def fresh(self) -> bool:
        """Whether no request has come on it yet, and one would be read."""
        return not self._deaf and self._latest is None

    def last(self, within_s: float) -> None:
        """Close after one request, or without one after ``within_s`` seconds."""
        self._last, self._head_timeout_s = True, within_s
        self._stop_timer()
        self._watch_head()

    def cut(self, error: ServingError) -> None:
        """Make ``error`` the answer to every request that has none yet."""
        self._cut = error
        if self._running is not None:
            self._running.wake()

    def fault(self, incomplete: bool) -> ServingError | HttpError | None:
        """Return why a request is to end, and be answered with that."""
        return self._cut or (self._bad_body if incomplete else None)

    def answered(self) -> None:
        """Go on with what had to wait."""
        unsent_bytes = self.unsent_bytes
        if unsent_bytes:
            self._unsent.add(self, unsent_bytes)
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start(self.pipeline.popleft())
        else:
            self._idle.begin()
        if self._unparsed:
            self._parse_on()
        if self._due is not None:  # in a turn of its own: others have theirs between
            self._loop.call_soon(self._begin_due)

    def in_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` in a task that the server waits for when it stops."""
        task = self._loop.create_task(work)
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)
        return task

    def linger(self) -> None:
        """Write no more, but let the client read before the connection closes.

        Closing on bytes not read would reset the connection, and take the answer with it.
        """
        if self.transport.is_closing():
            return
        if self._running is not None:
            self._running.leave()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._stop_timer()
        self._timer = self._loop.call_later(LINGER_S, self.transport.close)

    def _begin(self, head: RequestHead) -> Turn:
        """Give a request its turn, now or after those before it."""
        before, turn = self._latest, self._turns.turn(head, self)
        self._latest = turn
        if self._last:
            turn.close_after()
        if before is None or before.complete:
            self._start(turn)
            return turn
        self.flow.pause_reading()
        self.pipeline.append(turn)
        return turn

    def _start(self, turn: Turn) -> None:
        self._running = self._due = turn

    def _begin_due(self) -> None:
        turn, self._due = self._due, None
        if turn is not None:
            turn.begin()

    def _parse_on(self) -> None:
        """Parse what has arrived as far as there is room for the requests in it."""
        self._idle.end()
        parsing = self._parsing
        while self._unparsed and len(self.pipeline) < MAX_PIPELINED:
            size = max(PIECE_BYTES, parsing.body_left_bytes)
            piece, self._unparsed = self._unparsed[:size], self._unparsed[size:]
            fault = parsing.feed(piece)
            if fault is not None:
                self._refuse(fault)
        self.flow.hold(bool(self._unparsed))
        self._watch_head()

    def _refuse(self, fault: HttpError) -> None:
        self._stop_parsing()
        if self._latest is not None and self._answering():
            # An error here would be taken for the answer to the request before.
            self._latest.close_after()
            if self._parsing.in_body:
                self._bad_body = fault
                self._latest.wake()
        elif self._parsing.in_body:  # of a request that has been answered
            self.transport.close()
        else:
            self.transport.write(refusal(HTTPStatus(fault.status), fault.detail, self.standing))
            self.linger()

    def _stop_parsing(self) -> None:
        """Throw away what comes from here on; it is still read, to see the client leave."""
        self._deaf = True
        self._unparsed = memoryview(b"")
        self._stop_timer()
        self.flow.hold(False)

    def _answering(self) -> bool:
        return self._running is not None and not self._running.complete

    def _watch_head(self) -> None:
        """Run the clock exactly while a head is awaited and that of an idle connection is not."""
        if self._deaf:
            return
        waiting = self._parsing.in_head or not self._answering()
        if not waiting:
            self._stop_timer()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._head_timeout_s, self._head_is_late)

    def _head_is_late(self) -> None:
        self._stop_parsing()
        self.shutdown()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
