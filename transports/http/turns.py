"""Who answers a request over HTTP/1.1: inference itself, or the ASGI app."""

from typing import TypeAlias
from urllib.parse import unquote

import httptools
from starlette.types import ASGIApp

from transports.http.call import Target
from transports.http.connection import Connection
from transports.http.exchange import Exchange
from transports.http.inference import Inference
from transports.http.page_cycle import PageCycle
from transports.http.request_head import RequestHead

# A request in its turn on its connection, or waiting for it.
Turn: TypeAlias = Exchange | PageCycle


class Turns:
    """Makes the turns of one connection; without ``inference`` all are the app's."""

    def __init__(self, app: ASGIApp, inference: Inference | None) -> None:
        self._app = app
        self._inference = inference
        self._url, self._path = b"", ""
        self._target: Target | None = None

    def turn(self, head: RequestHead, connection: Connection) -> Turn:
        """Return what answers a request. What a broken target raises is for the parser."""
        if head.url != self._url:  # else it asks for the same as the one before, as most do
            self._look_up(head.url)
        # To a browser's page the app may have more to say: CORS.
        by_app = head.method != b"POST" or b"origin" in head.headers
        if self._inference is None or self._target is None or by_app:
            return PageCycle(head, self._path, connection, self._app)
        return Exchange(head, self._path, connection, self._inference, self._target)

    def _look_up(self, url: bytes) -> None:
        path = httptools.parse_url(url).path.decode("ascii")
        self._path = unquote(path) if "%" in path else path
        self._target = self._inference.target(self._path) if self._inference else None
        self._url = url
