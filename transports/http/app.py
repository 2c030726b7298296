"""The one ASGI app of HTTP/1.1 and HTTP/3: inference in front, FastAPI behind."""

from functools import partial

from starlette.middleware.errors import ServerErrorMiddleware
from starlette.types import Receive, Scope, Send

from scheduler.engine import Engine
from transports.codecs.oip_shared import SharedMemory
from transports.http import oip, predict
from transports.http.access import KeyedPages
from transports.http.call import Calls
from transports.http.intake import Intake
from transports.http.pages import document_inference, pages, unexpected_error


class HttpApp:
    """Route a request by its path; ``metrics``: clients may see them, too."""

    def __init__(self, engine: Engine, intake: Intake, *, metrics: bool = False) -> None:
        self._calls = Calls(engine, intake)
        self._engine = engine
        self._max_bytes = intake.limits.max_request_bytes
        served = pages(engine, metrics=metrics)
        document_inference(served, engine)
        self._pages = KeyedPages(served, engine)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        path = scope["path"]
        memory = SharedMemory(self._engine.regions, self._max_bytes)
        target = predict.target_in(path) or oip.target_in(path, memory)
        if target is None:
            await self._pages(scope, receive, send)
        else:
            # Answers and re-raises what nobody foresaw, so that the server logs it.
            app = ServerErrorMiddleware(partial(self._calls.answer, target), unexpected_error)
            await app(scope, receive, send)
