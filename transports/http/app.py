"""The one ASGI app of HTTP/1.1 and HTTP/3: inference in front, FastAPI behind."""

from starlette.middleware.errors import ServerErrorMiddleware
from starlette.types import Receive, Scope, Send

from scheduler.engine import Engine
from transports.http.access import KeyedPages
from transports.http.asked import AskedByAsgi
from transports.http.inference import Inference
from transports.http.intake import Intake
from transports.http.pages import document_inference, pages, unexpected_error

# Where the app leaves a request's own for itself.
TARGET = "narsil.target"


class HttpApp:
    """Route a request by its path; ``metrics``: clients may see them, too.

    A server of ours may ask ``inference`` itself, without ASGI between.
    """

    def __init__(self, engine: Engine, intake: Intake, *, metrics: bool = False) -> None:
        self.inference = Inference(engine, intake)
        served = pages(engine, metrics=metrics)
        document_inference(served, engine)
        self._pages = KeyedPages(served, engine)
        # Answers and re-raises what nobody foresaw, so that the server logs it.
        self._guarded = ServerErrorMiddleware(self._infer, unexpected_error)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        target = self.inference.target(scope["path"])
        if target is None:
            await self._pages(scope, receive, send)
        else:
            scope[TARGET] = target
            await self._guarded(scope, receive, send)

    async def _infer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.inference.answer(scope[TARGET], AskedByAsgi(scope, send), receive)
