"""``POST /v1/models/{model}/predict`` and ``/v1/predict``: bytes in, scores out, in plain ASGI.

No framework stands on this path: at 16 KB a request Starlette costs half as much again as the
bare protocol, FastAPI twice as much.
"""

import dataclasses
import time
from http import HTTPStatus

from starlette.types import Receive, Scope, Send

from scheduler.engine import Engine
from scheduler.errors import Code, ServingError
from scheduler.observer import Answered
from scheduler.types import InferRequest, InferResponse, Timing
from transports.codecs import predict_json, predictor
from transports.codecs.strict_json import shown
from transports.http.body import Body
from transports.http.disconnect import unless_client_leaves
from transports.http.head import JSON, parse_head, request_id
from transports.http.intake import Intake
from transports.http.problem import MEDIA_TYPE, HttpError, Problem, problem_of

Headers = list[tuple[bytes, bytes]]


def model_in(path: str) -> str | None:
    """Return the model a predict path names ("" for the only one); None for any other path."""
    if path == "/v1/predict":
        return ""
    if path.startswith("/v1/models/") and path.endswith("/predict"):
        name = path[len("/v1/models/") : -len("/predict")]
        return None if not name or "/" in name else name
    return None


class PredictRoute:
    """The ASGI app of all paths that ``model_in`` knows."""

    def __init__(self, engine: Engine, intake: Intake) -> None:
        self._engine = engine
        self._intake = intake

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request and tell the observer."""
        started = time.perf_counter()
        body = Body(receive, self._intake)
        call = _PredictCall(self._engine, body, scope, receive, send)
        try:
            await call.answer()
        finally:
            body.release()
            self._engine.observer.answered(call.record(time.perf_counter() - started))


class _PredictCall:
    """One predict request, from its head to its answer."""

    def __init__(
        self, engine: Engine, body: Body, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self._engine = engine
        self._body = body
        self._scope = scope
        self._receive = receive
        self._send = send
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self._http1 = scope["http_version"].startswith("1")
        self._id = request_id(self._headers.get(b"x-request-id", b""))
        self._model = ""
        self._rows = 0
        # Stands until an answer is found, so a bug of ours is counted as what it is.
        self._code: Code | None = Code.INTERNAL
        self._detail = ""

    def record(self, duration_s: float) -> Answered:
        """Return what the observer is told about this request."""
        return Answered(
            transport="http" if self._http1 else "http3",
            model=self._model,
            rows=self._rows,
            code=self._code,
            duration_s=duration_s,
            request_id=self._id,
            detail=self._detail,
        )

    async def answer(self) -> None:
        """Send scores, or the problem that kept us from having any."""
        try:
            headers, body = await self._scores()
        except (ServingError, HttpError) as error:
            self._code, self._detail = error.code, error.detail
            await self._refuse(problem_of(error))
        else:
            self._code = None
            await self._start(HTTPStatus.OK, headers, body)
            await self._send({"type": "http.response.body", "body": body})

    async def _scores(self) -> tuple[Headers, bytes]:
        if self._scope["method"] != "POST":
            detail = f"{shown(self._scope['method'])} is not supported here, send POST"
            raise HttpError(HTTPStatus.METHOD_NOT_ALLOWED, detail, {"allow": "POST"})
        head = parse_head(self._headers)
        is_json = head.media_type == JSON
        body = await self._body.read(head.body_bytes, is_json)
        spec = self._engine.spec(model_in(self._scope["path"]) or "")
        self._model = spec.name
        if is_json:
            request = predict_json.decode_request(body, spec)
        else:
            request = predictor.decode_request(body, spec.name)
        response = await self._infer(request, head.timeout_s)
        encode = predict_json.encode_response if is_json else predictor.encode_response
        return _response_headers(head.media_type, response.timing), encode(response)

    async def _infer(self, request: InferRequest, timeout_s: float) -> InferResponse:
        if request.id and b"x-request-id" not in self._headers:
            self._id = request_id(request.id.encode())
        self._rows = request.rows
        request = dataclasses.replace(
            request,
            model=self._model,
            id=self._id,
            timeout_s=min(timeout_s, request.timeout_s),
        )
        return await unless_client_leaves(self._engine.infer(request), self._receive)

    async def _refuse(self, problem: Problem) -> None:
        headers = [(b"content-type", MEDIA_TYPE.encode())]
        headers += [(name.encode(), value.encode()) for name, value in problem.headers.items()]
        # HTTP/3 can stop one stream; HTTP/1 has to swallow the rest, or lose the connection.
        swallow = self._http1 and not self._body.complete
        if swallow:
            headers.append((b"connection", b"close"))
        body = problem.body(self._scope["path"])
        await self._start(problem.status, headers, body)
        await self._send({"type": "http.response.body", "body": body, "more_body": swallow})
        if swallow:
            await self._body.drain()
            await self._send({"type": "http.response.body"})

    async def _start(self, status: int, headers: Headers, body: bytes) -> None:
        headers.append((b"content-length", b"%d" % len(body)))
        headers.append((b"x-request-id", self._id.encode()))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})


def _response_headers(media_type: str, timing: Timing) -> Headers:
    spent = {"queue": timing.queue_s, "gather": timing.gather_s, "compute": timing.compute_s}
    text = ", ".join(f"{name};dur={seconds * 1e3:.3f}" for name, seconds in spent.items())
    return [(b"content-type", media_type.encode()), (b"server-timing", text.encode())]
