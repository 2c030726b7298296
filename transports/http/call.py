"""One inference request over HTTP, whatever its protocol: the steps that wait for nothing.

    path -> Target -> head -> body -> Form.decode -> engine -> Encode -> answer

What is waited for, and how, is for who calls them: ``direct.py`` without a task, ``calls.py`` in
one. No framework stands on this path: at 16 KB a request Starlette costs half as much again as the
bare protocol, FastAPI twice as much.
"""

import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TypeAlias

from scheduler.access import Caller
from scheduler.asking import Asker
from scheduler.engine import Engine
from scheduler.errors import Code, ServingError
from scheduler.observer import Answered
from scheduler.often import often_made
from scheduler.types import InferRequest, InferResponse, ModelSpec, Timing, Trace
from transports.codecs.strict_json import shown
from transports.http.access import caller_of
from transports.http.asked import Asked
from transports.http.body import Body
from transports.http.coding import MIN_PACKED_BYTES
from transports.http.head import (
    CallHead,
    harmless,
    has_body,
    own_id,
    own_trace,
    parse_head,
    span_of,
)
from transports.http.problem import MEDIA_TYPE, HttpError, problem_of
from transports.named import Named, named

Headers: TypeAlias = list[tuple[bytes, bytes]]
# Writes an answer: the headers that say what it is, and its body.
Encode: TypeAlias = Callable[[InferResponse], tuple[Headers, bytes]]


@often_made(frozen=True, slots=True)
class Form:
    """How one body is read and its answer written: all that a protocol has of its own.

    ``json_bytes`` is how much of the body is JSON, None for all of it: JSON has a smaller limit.
    ``decode`` raises ServingError.
    """

    json_bytes: int | None
    decode: Callable[[bytes, ModelSpec], tuple[InferRequest, Encode]]


@often_made(frozen=True, slots=True)
class Target:
    """What a path asks for: a model ("" is the only one) in a version ("" is the latest).

    ``form`` chooses by the request's headers. It raises ServingError or HttpError.
    """

    model: str
    version: str
    form: Callable[[Mapping[bytes, bytes]], Form]


class Call(Asker):
    """One request on its way.

    ``opened``, ``decoded`` and ``encoded`` raise ServingError or HttpError. Who is told the answer,
    in the place of awaiting it, takes it as an ``Asker``.
    """

    def __init__(self, engine: Engine, target: Target, body: Body, asked: Asked) -> None:
        self._began_s = time.perf_counter()
        self._engine = engine
        self._target = target
        self._body = body
        self._asked = asked
        self._headers = asked.headers
        self._http1 = asked.version.startswith("1")
        self._id = own_id(asked.headers)
        self._trace: Trace | None = None
        self._named: Named | None = None  # until somebody wants to know
        self._caller: Caller | None = None
        self._encode: Encode | None = None
        self._accepted = ""
        self._rows = 0
        # Stands until an answer is found, so a bug of ours is counted as what it is.
        self._code: Code | None = Code.INTERNAL
        self._detail = ""
        self._status = 0
        self._bytes_in = self._bytes_out = 0
        self._timing: Timing | None = None
        self._recorded = False

    def begin_span(self) -> None:
        """Ask whether it is traced."""
        self._trace = span_of(self._engine.observer, self._headers, self._began_s)

    def opened(self) -> tuple[CallHead, Form]:
        """Return what its head says, before anything of its body is read."""
        if self._asked.method != "POST":
            detail = f"{shown(self._asked.method)} is not supported here, send POST"
            raise HttpError(HTTPStatus.METHOD_NOT_ALLOWED, detail, {"allow": "POST"})
        self._caller = caller_of(self._engine, self._asked.path, self._headers)
        head = parse_head(self._headers)
        self._accepted = head.accepted
        return head, self._target.form(self._headers)

    def decoded(self, body: bytes, head: CallHead, form: Form) -> InferRequest:
        """Return what ``body`` asks for, with what the head has to say."""
        spec = self._engine.spec(self._target.model, self._target.version)
        self._bytes_in = len(body)
        self._named = Named(spec.name, spec.version)
        request, self._encode = form.decode(body, spec)
        if request.id and b"x-request-id" not in self._headers:
            self._id = harmless(request.id.encode()) or self._id
        self._rows = request.rows
        if self._caller is not None:
            self._caller.spend(request.rows)
        return InferRequest(
            spec.name,
            request.rows,
            request.inputs,
            self._id,
            min(head.timeout_s, request.timeout_s),
            request.outputs,
            request.priority or head.priority,
            self._target.version,
            request.key or head.key,
            request.shared,
            self._trace,
        )

    def encoded(self, response: InferResponse) -> tuple[Headers, bytes]:
        """Return what scores are answered with: the headers that say what it is, and the body."""
        assert self._encode is not None
        self._timing = response.timing
        if response.version != self._served().version:
            self._named = Named(response.model, response.version)
        headers, body = self._encode(response)
        headers.append(_server_timing(response.timing))
        return headers, body

    def coding_of(self, headers: Headers, body: bytes) -> str:
        """Return what ``body`` is to be packed with, and say so in ``headers``; "" for not."""
        if not self._accepted or len(body) < MIN_PACKED_BYTES:
            return ""
        headers.append((b"content-encoding", self._accepted.encode()))
        return self._accepted

    def granted(self, headers: Headers, body: bytes) -> None:
        """Note that it is answered with scores; complete their ``headers``."""
        self._code = None
        # A client that does not read its answer must not hold what others may send.
        self._body.release()
        self._complete(HTTPStatus.OK, headers, body)

    def refused(self, error: ServingError | HttpError) -> tuple[int, Headers, bytes, bool]:
        """Note that it is answered with ``error``; return status, headers and body.

        And whether what is still coming is to be swallowed: HTTP/3 can stop one stream, HTTP/1
        would lose the connection.
        """
        self._code, self._detail = error.code, error.detail
        if isinstance(error, ServingError) and error.version:
            self._named = Named(self._served().model, error.version)
        problem = problem_of(error)
        headers = [(b"content-type", MEDIA_TYPE.encode())]
        headers += [(name.encode(), value.encode()) for name, value in problem.headers.items()]
        swallow = self._http1 and not self._body.complete and has_body(self._headers)
        if swallow:
            headers.append((b"connection", b"close"))
        body = problem.body(self._asked.path)
        self._complete(problem.status, headers, body)
        return problem.status, headers, body, swallow

    def end(self) -> None:
        """Give back its memory and tell the observer, once."""
        if self._recorded:
            return
        self._recorded = True
        self._body.release()
        self._engine.observer.answered(self._record(time.perf_counter() - self._began_s))

    def _record(self, duration_s: float) -> Answered:
        served = self._served()
        return Answered(
            transport="http" if self._http1 else "http3",
            model=served.model,
            version=served.version,
            rows=self._rows,
            code=self._code,
            duration_s=duration_s,
            request_id=self._id,
            detail=self._detail,
            trace_id=self._trace.trace_id if self._trace else own_trace(self._headers),
            trace=self._trace,
            operation=f"{self._asked.method} {self._asked.path}",
            protocol=self._asked.version,
            http_status=self._status,
            bytes_in=self._bytes_in,
            bytes_out=self._bytes_out,
            timing=self._timing,
        )

    def _served(self) -> Named:
        """Return what is served of what the path names."""
        if self._named is None:
            self._named = named(self._engine, self._target.model, self._target.version)
        return self._named

    def _complete(self, status: int, headers: Headers, body: bytes) -> None:
        """Add to ``headers`` what every answer has; note the answer."""
        self._status, self._bytes_out = int(status), len(body)
        headers.append((b"content-length", b"%d" % len(body)))
        headers.append((b"x-request-id", self._id.encode()))


def _server_timing(timing: Timing) -> tuple[bytes, bytes]:
    spent_ms = (timing.queue_s * 1e3, timing.gather_s * 1e3, timing.compute_s * 1e3)
    return b"server-timing", b"queue;dur=%.3f, gather;dur=%.3f, compute;dur=%.3f" % spent_ms
