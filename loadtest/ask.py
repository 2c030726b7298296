"""Ask a server every request once, one after another: for what it answers, not for how soon."""

import select
import time
from collections.abc import Iterable

from loadtest.closed import NoServerError, RequestFailedError
from loadtest.wires.base import Answer, Wire

_PATIENCE_S = 60.0
_LONGEST_WAIT_S = 0.25


def ask_all(wire: Wire, bodies: Iterable[bytes]) -> list[bytes]:
    """Return the answers, in order. Raises RequestFailedError or NoServerError."""
    return [_ask(wire, number, body) for number, body in enumerate(bodies)]


def _ask(wire: Wire, ticket: int, body: bytes) -> bytes:
    wire.ask(ticket, body)
    wire.flush()
    end_s = time.perf_counter() + _PATIENCE_S
    answers: list[Answer] = []
    while not answers:
        now_s = time.perf_counter()
        if now_s > end_s:
            raise NoServerError(f"no answer within {_PATIENCE_S:g} s")
        wait_s = max(0.0, min(wire.due_s - now_s, _LONGEST_WAIT_S))
        select.select([wire], [wire] if wire.blocked else [], [], wait_s)
        answers = wire.receive()
        wire.flush()
    (answer,) = answers
    if answer.status:
        raise RequestFailedError(answer.status, answer.detail)
    return answer.body
