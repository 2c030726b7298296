"""The one ASGI app of HTTP/1.1 and HTTP/3: predict in front, FastAPI behind."""

from starlette.middleware.errors import ServerErrorMiddleware
from starlette.types import Receive, Scope, Send

from scheduler.engine import Engine
from transports.http.intake import Intake
from transports.http.pages import document_predict, pages, unexpected_error
from transports.http.predict import PredictRoute, model_in


class HttpApp:
    """Route a request by its path."""

    def __init__(self, engine: Engine, intake: Intake) -> None:
        # Answers and re-raises what nobody foresaw, so that the server logs it.
        self._predict = ServerErrorMiddleware(PredictRoute(engine, intake), unexpected_error)
        self._pages = pages(engine)
        document_predict(self._pages, engine)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        app = self._pages if model_in(scope["path"]) is None else self._predict
        await app(scope, receive, send)
