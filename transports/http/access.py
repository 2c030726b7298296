"""Which paths need an API key, and whether a request's will do."""

from collections.abc import Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from scheduler.access import Caller
from scheduler.engine import Engine
from scheduler.errors import ServingError
from transports.credential import API_KEY, AUTHORIZATION, credential_in, not_allowed
from transports.http.head import own_id
from transports.http.problem import MEDIA_TYPE, problem_of

# What load balancers ask; it says nothing about the models.
OPEN = frozenset(
    ("/livez", "/readyz", "/startupz", "/healthz", "/ping", "/v2/health/live", "/v2/health/ready")
)
_CONTROL = ("/v2/repository/models/", "/v2/systemsharedmemory/")
_STATUS = "/status"


def caller_of(engine: Engine, path: str, headers: Mapping[bytes, bytes]) -> Caller | None:
    """Return who asks, the request counted; None where that does not matter.

    Raises ServingError (UNAUTHENTICATED, PERMISSION_DENIED, RATE_LIMITED).
    """
    if engine.access is None or path in OPEN:
        return None
    caller = engine.access.caller(
        credential_in(_text(headers, AUTHORIZATION), _text(headers, API_KEY))
    )
    if path.startswith(_CONTROL) and not path.endswith(_STATUS) and not caller.control:
        raise not_allowed()
    caller.begin()
    return caller


class KeyedPages:
    """Serve ``app``, the pages, to those who may have them."""

    def __init__(self, app: ASGIApp, engine: Engine) -> None:
        self._app = app
        self._engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        headers = dict(scope["headers"])
        try:
            caller_of(self._engine, scope["path"], headers)
        except ServingError as error:
            await _refuse(scope, send, error, own_id(headers))
        else:
            await self._app(scope, receive, send)


async def _refuse(scope: Scope, send: Send, error: ServingError, name: str) -> None:
    problem = problem_of(error)
    body = problem.body(scope["path"])
    given = {
        **problem.headers,
        "content-type": MEDIA_TYPE,
        "content-length": str(len(body)),
        "x-request-id": name,
    }
    headers = [(key.encode(), value.encode()) for key, value in given.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _text(headers: Mapping[bytes, bytes], name: str) -> str:
    return headers.get(name.encode(), b"").decode("latin-1")
