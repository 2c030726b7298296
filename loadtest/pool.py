"""The connections of a run: which is free, which has something to send, which is gone."""

import contextlib
import select
import time
from collections import deque
from collections.abc import Callable, Sequence

from loadtest.closed import NoServerError
from loadtest.wires.base import Answer, Wire

LOST, NO_SERVER = "CONNECTION_LOST", "NO_SERVER"

Reopen = Callable[[], Wire]


class Pool:
    """Share requests out over ``wires``, in turn.

    With ``reopen`` the end of a connection ends no run: what was under way on it is LOST, and a
    request that finds no connection opens one, or gets NO_SERVER. Without, NoServerError is raised.
    """

    def __init__(self, wires: Sequence[Wire], reopen: Reopen | None = None) -> None:
        self._reopen = reopen
        self._wires = {wire.fileno(): wire for wire in wires}
        self._turns = deque(wires)
        self._at: dict[int, Wire] = {}
        self._dirty: set[Wire] = set()
        self._blocked: set[int] = set()
        self._own: list[Answer] = []
        self._opened: list[Wire] = []
        self._epoll = select.epoll()
        for fileno in self._wires:
            self._epoll.register(fileno, select.EPOLLIN)

    @property
    def due_s(self) -> float:
        """Return when to look, even if nothing has arrived (perf_counter); 0: now."""
        if self._own:
            return 0.0
        return min((wire.due_s for wire in self._turns), default=float("inf"))

    def close(self) -> None:
        """Close what was opened here."""
        self._epoll.close()
        abandon(self._opened)

    def ask(self, ticket: int, body: bytes) -> bool:
        """Begin a request on a connection that is free; say whether there was one."""
        for _ in range(len(self._turns)):
            wire = self._turns[0]
            self._turns.rotate(-1)
            if wire.free and self._begun(wire, ticket, body):
                return True
        if self._turns or self._reopen is None:
            return False
        try:
            wire = self._open(self._reopen)
        except NoServerError as error:
            self._own.append(Answer(ticket, NO_SERVER, str(error), b""))
            return True
        return self._begun(wire, ticket, body)

    def _begun(self, wire: Wire, ticket: int, body: bytes) -> bool:
        try:
            wire.ask(ticket, body)
        except NoServerError:
            if self._reopen is None:
                raise
            # It takes no more requests; the answers to those before may still come.
            self._turns.remove(wire)
            return False
        self._at[ticket] = wire
        self._dirty.add(wire)
        return True

    def _open(self, reopen: Reopen) -> Wire:
        wire = reopen()
        self._opened.append(wire)
        self._turns.append(wire)
        self._wires[wire.fileno()] = wire
        self._epoll.register(wire.fileno(), select.EPOLLIN)
        return wire

    def cancel(self, ticket: int) -> None:
        """Give up a request that has been asked."""
        wire = self._at.pop(ticket)
        was = wire.fileno()
        if was not in self._wires:  # lost in this turn
            return
        del self._wires[was]
        wire.cancel(ticket)
        if wire.fileno() != was:
            self._blocked.discard(was)
        # HTTP/1.1 cancels by a new connection, whose number may be the old one's.
        self._wires[wire.fileno()] = wire
        with contextlib.suppress(FileExistsError):
            self._epoll.register(wire.fileno(), select.EPOLLIN)
        self._dirty.add(wire)

    def flush(self) -> None:
        """Send what the sockets take."""
        for wire in [*self._dirty]:
            try:
                wire.flush()
            except NoServerError as error:
                self._lose(wire, error)
                continue
            if wire.blocked != (wire.fileno() in self._blocked):
                self._watch(wire)
        self._dirty.clear()

    def _watch(self, wire: Wire) -> None:
        self._blocked ^= {wire.fileno()}
        also = select.EPOLLOUT if wire.blocked else 0
        self._epoll.modify(wire.fileno(), select.EPOLLIN | also)

    def receive(self, wait_s: float) -> list[Answer]:
        """Wait at most ``wait_s`` for something to arrive; return the answers."""
        # epoll waits in milliseconds; select, which can wait for an epoll, in microseconds.
        if wait_s > 0:
            select.select([self._epoll], [], [], wait_s)
        ready = {fileno for fileno, _ in self._epoll.poll(0)}
        now_s = time.perf_counter()
        ready |= {fileno for fileno, wire in self._wires.items() if wire.due_s <= now_s}
        answers, self._own = self._own, []
        for fileno in ready:
            wire = self._wires[fileno]
            try:
                answers += wire.receive()
            except NoServerError as error:
                self._lose(wire, error)
                continue
            self._dirty.add(wire)
        for answer in answers:
            self._at.pop(answer.ticket, None)
        return answers

    def _lose(self, wire: Wire, error: NoServerError) -> None:
        if self._reopen is None:
            raise error
        fileno = wire.fileno()
        self._epoll.unregister(fileno)
        del self._wires[fileno]
        self._blocked.discard(fileno)
        self._dirty.discard(wire)
        with contextlib.suppress(ValueError):
            self._turns.remove(wire)
        left = [ticket for ticket, at in self._at.items() if at is wire]
        self._own += [Answer(ticket, LOST, str(error), b"") for ticket in left]
        abandon([wire])


def abandon(wires: Sequence[Wire]) -> None:
    """Close ``wires``, whatever state they are in."""
    for wire in wires:
        with contextlib.suppress(NoServerError):
            wire.close()
