"""``POST /v1/models/{model}/embeddings``: a delta, taken in front of the operators' pages.

In plain ASGI, as predictions are: on its way through FastAPI a delta held up the event loop for a
millisecond in one turn, and the answers of the requests that met it.
"""

import asyncio
import re
from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import parse_qsl

import orjson
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from scheduler.engine import Engine
from scheduler.errors import Code, ServingError, invalid, shown
from scheduler.threads import Worker
from scheduler.updates import Applied
from transports import updates
from transports.http.body import Body
from transports.http.head import JSON, own_id
from transports.http.intake import BodyLimits, Intake
from transports.http.openapi import Schema, failures, path_parameter
from transports.http.pages import unexpected_error
from transports.http.problem import MEDIA_TYPE, HttpError, problem_of
from transports.http.whole import answer

PATH = "/v1/models/{model}/embeddings"
# Taken as fast as that, the event loop is busy with a delta for a tenth of the time.
MOST_BYTES_PER_S = 64 * 1024 * 1024
OFF = "embedding updates over this listener are off: --admin-updates (admin.updates) allows them"
_PATH = re.compile(r"/v1/models/([^/]+)/embeddings")
_QUERY = ("version",)
_FORM = "application/x-www-form-urlencoded"
_TYPES = (
    JSON,
    "application/vnd.apache.arrow.file",
    "application/vnd.apache.arrow.stream",
    "application/vnd.apache.parquet",
)


class DeltasApp:
    """Take deltas; pass everything else to ``following``. Without ``writable`` they get 501."""

    def __init__(self, following: ASGIApp, engine: Engine, *, writable: bool) -> None:
        self._following = following
        self._engine = engine
        self._writable = writable
        self._intake = Intake(BodyLimits())
        self._worker = Worker("delta")
        # A delta is many times its body, unpacked: those that wait are bodies.
        self._one = asyncio.Lock()
        self._deltas = ServerErrorMiddleware(self._answer, unexpected_error)

    def close(self) -> None:
        """Take nothing more."""
        self._intake.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        found = _PATH.fullmatch(scope["path"]) if scope["method"] == "POST" else None
        if found is None:
            await self._following(scope, receive, send)
        else:
            scope["path_params"] = {"model": found[1]}
            await self._deltas(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        said = [(b"x-request-id", own_id(headers).encode())]
        try:
            status, body = (
                HTTPStatus.OK.value,
                orjson.dumps(await self._apply(scope, receive, headers)),
            )
            said.append((b"content-type", JSON.encode()))
        except (ServingError, HttpError) as error:
            problem = problem_of(error)
            status, body = problem.status, problem.body(scope["path"])
            said.append((b"content-type", MEDIA_TYPE.encode()))
            said += [(name.encode(), value.encode()) for name, value in problem.headers.items()]
        said.append((b"content-length", b"%d" % len(body)))
        await answer(scope, send, status, said, body)

    async def _apply(
        self, scope: Scope, receive: Receive, headers: Mapping[bytes, bytes]
    ) -> Applied:
        check_writable(self._writable)
        is_json = _is_json(headers.get(b"content-type", b""))
        version = _version(scope)
        body = Body(receive, self._intake)
        try:
            content = await body.pieces(
                _length(headers), None if is_json else 0, bytes_per_s=MOST_BYTES_PER_S
            )
            async with self._one:
                decoded = await updates.decode(self._engine, content, self._worker, is_json=is_json)
                delta = updates.addressed(decoded, scope["path_params"]["model"], version)
                return await updates.apply(self._engine, delta)
        finally:
            body.release()


def check_writable(writable: bool) -> None:
    """Refuse what would change a model unless that is allowed. Raises ServingError."""
    if not writable:
        raise ServingError(Code.UNSUPPORTED, OFF)


def delta_paths(model: str) -> Schema:
    """Return the path item, which FastAPI cannot know."""
    binary = {"schema": {"type": "string", "format": "binary"}}
    version = {"name": "version", "in": "query", "schema": {"type": "string", "default": ""}}
    return {
        PATH: {
            "post": {
                "tags": ["embeddings"],
                "summary": "Replace rows of embedding tables: Arrow IPC, Parquet or JSON",
                "parameters": [path_parameter("model", model), version],
                "requestBody": {
                    "required": True,
                    "content": {
                        JSON: {"schema": {"type": "object"}},
                        **dict.fromkeys(_TYPES[1:], binary),
                    },
                },
                "responses": {
                    "200": {
                        "description": "Applied, now or before",
                        "content": {JSON: {"schema": {"type": "object"}}},
                    },
                    **failures("400", "404", "408", "413", "415", "429", "500", "501", "503"),
                },
            }
        }
    }


def _length(headers: Mapping[bytes, bytes]) -> int | None:
    declared = headers.get(b"content-length", b"")
    return int(declared) if declared.isdigit() else None


def _version(scope: Scope) -> str:
    text: str = scope["query_string"].decode("latin-1")
    query = dict(parse_qsl(text, keep_blank_values=True))
    for name in query:
        if name not in _QUERY:
            raise invalid(f"unknown query parameter {shown(name)}; known: {', '.join(_QUERY)}")
    return query.get("version", "")


def _is_json(content_type: bytes) -> bool:
    """Return whether a delta says that it is JSON; else its first bytes say what it is.

    Raises HttpError for a form: so curl calls what it is told no type of.
    """
    name = content_type.decode("latin-1").partition(";")[0].strip().lower()
    if name == _FORM:
        raise HttpError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"content-type: {name} is no delta; send {', '.join(_TYPES)}",
        )
    return name == JSON
