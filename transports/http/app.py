"""The one ASGI app of HTTP/1.1 and HTTP/3: inference in front, FastAPI behind."""

from starlette.middleware.errors import ServerErrorMiddleware
from starlette.types import Receive, Scope, Send

from scheduler.engine import Engine
from transports.codecs.oip_shared import SharedMemory
from transports.http import oip, predict
from transports.http.access import KeyedPages
from transports.http.call import Calls, Target
from transports.http.intake import Intake
from transports.http.pages import document_inference, pages, unexpected_error

# Where the app leaves a request's own for itself.
TARGET = "narsil.target"


class HttpApp:
    """Route a request by its path; ``metrics``: clients may see them, too."""

    def __init__(self, engine: Engine, intake: Intake, *, metrics: bool = False) -> None:
        self._calls = Calls(engine, intake)
        self._engine = engine
        self._max_bytes = intake.limits.max_request_bytes
        served = pages(engine, metrics=metrics)
        document_inference(served, engine)
        self._pages = KeyedPages(served, engine)
        # Answers and re-raises what nobody foresaw, so that the server logs it.
        self._inference = ServerErrorMiddleware(self._infer, unexpected_error)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        target = self._target(scope["path"])
        if target is None:
            await self._pages(scope, receive, send)
        else:
            scope[TARGET] = target
            await self._inference(scope, receive, send)

    def _target(self, path: str) -> Target | None:
        target = predict.target_in(path)
        if target is not None or not path.endswith(oip.INFER):
            return target
        return oip.target_in(path, SharedMemory(self._engine.regions, self._max_bytes))

    async def _infer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._calls.answer(scope[TARGET], scope, receive, send)
