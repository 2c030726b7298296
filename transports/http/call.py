"""One inference request over HTTP, whatever its protocol.

    path -> Target -> head -> body -> Form.decode -> engine -> Encode -> answer

No framework stands on this path: at 16 KB a request Starlette costs half as much again as the
bare protocol, FastAPI twice as much.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TypeAlias

from starlette.types import Receive

from scheduler.access import Caller
from scheduler.engine import Engine
from scheduler.errors import Code, ServingError
from scheduler.observer import Answered
from scheduler.often import often_made
from scheduler.types import InferRequest, InferResponse, ModelSpec, Timing, Trace
from transports.codecs.strict_json import shown
from transports.http.access import caller_of
from transports.http.asked import Asked
from transports.http.body import Body
from transports.http.coding import MIN_PACKED_BYTES, packed
from transports.http.disconnect import unless_client_leaves
from transports.http.head import CallHead, harmless, own_id, own_trace, parse_head, span_of
from transports.http.intake import Intake
from transports.http.problem import MEDIA_TYPE, HttpError, Problem, problem_of
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


class Calls:
    """Answers every inference request; what they share is ``intake``."""

    def __init__(self, engine: Engine, intake: Intake) -> None:
        self._engine = engine
        self._intake = intake

    async def answer(self, target: Target, asked: Asked, receive: Receive) -> None:
        """Answer one request, whose body ``receive`` has, and tell the observer."""
        started = time.perf_counter()
        body = Body(receive, self._intake)
        call = _Call(self._engine, target, body, asked, receive)
        call.trace = span_of(self._engine.observer, call.headers, started)
        try:
            await call.answer()
        finally:
            body.release()
            self._engine.observer.answered(call.record(time.perf_counter() - started))


class _Call:
    """One request, from its head to its answer."""

    def __init__(
        self, engine: Engine, target: Target, body: Body, asked: Asked, receive: Receive
    ) -> None:
        self._engine = engine
        self._target = target
        self._body = body
        self._asked = asked
        self._receive = receive
        self.headers = asked.headers
        self.trace: Trace | None = None
        self._http1 = asked.version.startswith("1")
        self._id = own_id(self.headers)
        self._named: Named | None = None  # until somebody wants to know
        self._rows = 0
        self._caller: Caller | None = None
        # Stands until an answer is found, so a bug of ours is counted as what it is.
        self._code: Code | None = Code.INTERNAL
        self._detail = ""
        self._status = 0
        self._bytes_in = self._bytes_out = 0
        self._timing: Timing | None = None

    def record(self, duration_s: float) -> Answered:
        """Return what the observer is told about this request."""
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
            trace_id=self.trace.trace_id if self.trace else own_trace(self.headers),
            trace=self.trace,
            operation=f"{self._asked.method} {self._asked.path}",
            protocol=self._asked.version,
            http_status=self._status,
            bytes_in=self._bytes_in,
            bytes_out=self._bytes_out,
            timing=self._timing,
        )

    async def answer(self) -> None:
        """Send scores, or the problem that kept us from having any."""
        try:
            headers, body = await self._scores(self._target)
        except (ServingError, HttpError) as error:
            self._code, self._detail = error.code, error.detail
            if isinstance(error, ServingError) and error.version:
                self._named = Named(self._served().model, error.version)
            await self._refuse(problem_of(error))
        else:
            self._code = None
            # A client that does not read its answer must not hold what others may send.
            self._body.release()
            self._complete(HTTPStatus.OK, headers, body)
            await self._asked.answer(HTTPStatus.OK, headers, body)

    async def _scores(self, target: Target) -> tuple[Headers, bytes]:
        if self._asked.method != "POST":
            detail = f"{shown(self._asked.method)} is not supported here, send POST"
            raise HttpError(HTTPStatus.METHOD_NOT_ALLOWED, detail, {"allow": "POST"})
        # Before anything of its body is read.
        self._caller = caller_of(self._engine, self._asked.path, self.headers)
        head = parse_head(self.headers)
        form = target.form(self.headers)
        body = await self._body.read(head.body_bytes, form.json_bytes, head.coding)
        spec = self._engine.spec(target.model, target.version)
        self._bytes_in = len(body)
        self._named = Named(spec.name, spec.version)
        request, encode = form.decode(body, spec)
        response = await self._infer(request, spec.name, head)
        self._timing = response.timing
        if response.version != spec.version:
            self._named = Named(response.model, response.version)
        headers, body = encode(response)
        headers.append(_server_timing(response.timing))
        if head.accepted and len(body) >= MIN_PACKED_BYTES:
            headers.append((b"content-encoding", head.accepted.encode()))
            body = await _pack(body, head.accepted)
        return headers, body

    async def _infer(self, request: InferRequest, model: str, head: CallHead) -> InferResponse:
        if request.id and b"x-request-id" not in self.headers:
            self._id = harmless(request.id.encode()) or self._id
        self._rows = request.rows
        if self._caller is not None:
            self._caller.spend(request.rows)
        request = InferRequest(
            model,
            request.rows,
            request.inputs,
            self._id,
            min(head.timeout_s, request.timeout_s),
            request.outputs,
            request.priority or head.priority,
            self._target.version,
            request.key or head.key,
            request.shared,
            self.trace,
        )
        return await unless_client_leaves(self._engine.infer(request), self._receive)

    def _served(self) -> Named:
        """Return what is served of what the path names."""
        if self._named is None:
            self._named = named(self._engine, self._target.model, self._target.version)
        return self._named

    async def _refuse(self, problem: Problem) -> None:
        headers = [(b"content-type", MEDIA_TYPE.encode())]
        headers += [(name.encode(), value.encode()) for name, value in problem.headers.items()]
        # HTTP/3 can stop one stream; HTTP/1 has to swallow the rest, or lose the connection.
        swallow = self._http1 and not self._body.complete
        if swallow:
            headers.append((b"connection", b"close"))
        body = problem.body(self._asked.path)
        self._complete(problem.status, headers, body)
        if swallow:
            await self._asked.answer_early(problem.status, headers, body, self._body.drain)
        else:
            await self._asked.answer(problem.status, headers, body)

    def _complete(self, status: int, headers: Headers, body: bytes) -> None:
        """Add to ``headers`` what every answer has; note the answer."""
        self._status, self._bytes_out = int(status), len(body)
        headers.append((b"content-length", b"%d" % len(body)))
        headers.append((b"x-request-id", self._id.encode()))


async def _pack(body: bytes, coding: str) -> bytes:
    pieces = []
    for piece in packed(body, coding):
        pieces.append(piece)
        await asyncio.sleep(0)  # let others have their turn
    return b"".join(pieces)


def _server_timing(timing: Timing) -> tuple[bytes, bytes]:
    spent_ms = (timing.queue_s * 1e3, timing.gather_s * 1e3, timing.compute_s * 1e3)
    return b"server-timing", b"queue;dur=%.3f, gather;dur=%.3f, compute;dur=%.3f" % spent_ms
