"""The playground's predictions in front of the operators' pages.

/page + a predict path of the inference listener -> the same codec, limits and records
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from starlette.middleware.errors import ServerErrorMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from scheduler.engine import Engine
from transports.http import predict
from transports.http.asked import AskedByAsgi
from transports.http.call import Form, Target
from transports.http.calls import Calls
from transports.http.intake import Intake
from transports.http.page.guard import check_host, check_own
from transports.http.pages import unexpected_error

PREFIX = "/page"


class PlaygroundApp:
    """Answer the page's own predictions; pass everything else to ``following``."""

    def __init__(self, following: ASGIApp, engine: Engine, intake: Intake, listens_on: str) -> None:
        self._following = following
        self._calls = Calls(engine, intake)
        self._listens_on = listens_on

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        path = scope["path"]
        # Only of one model by name: the short path is for people with curl.
        found = predict.target_in(path.removeprefix(PREFIX)) if path.startswith(PREFIX) else None
        if found is None or not found.model:
            await self._following(scope, receive, send)
            return
        target = replace(found, form=partial(self._form, found))
        app = ServerErrorMiddleware(partial(self._predict, target), unexpected_error)
        await app(scope, receive, send)

    async def _predict(self, target: Target, scope: Scope, receive: Receive, send: Send) -> None:
        await self._calls.answer(target, AskedByAsgi(scope, send), receive)

    def _form(self, target: Target, headers: Mapping[bytes, bytes]) -> Form:
        check_host(headers, self._listens_on)
        check_own(headers)
        return target.form(headers)
