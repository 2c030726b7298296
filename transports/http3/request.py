"""The async shell of one HTTP/3 request: an Exchange, its stream, and the task between them."""

import asyncio
import logging
from collections.abc import Callable

from aioquic.h3.connection import ErrorCode
from starlette.types import ASGIApp, Message

from scheduler.errors import ServingError
from transports.http.receiving import Ended, ended
from transports.http.whole import Fields, with_whole
from transports.http3.bridge import Exchange
from transports.http3.session import Session

logger = logging.getLogger(__name__)


class Request:
    """Runs the app on one stream; ``transmit`` asks the connection to send what was written."""

    def __init__(
        self, session: Session, stream_id: int, exchange: Exchange, transmit: Callable[[], None]
    ) -> None:
        self._session = session
        self._stream_id = stream_id
        self._exchange = exchange
        self._transmit = transmit
        self._news = asyncio.Event()
        self._told: Ended | None = None
        self.sent_bytes = 0

    def receive_body(self, data: bytes, ended: bool) -> None:
        """Pass body bytes on to the app."""
        self._exchange.receive_body(data, ended)
        self._news.set()

    def disconnect(self) -> None:
        """Tell the app that the client is gone."""
        self._exchange.disconnect()
        self._news.set()
        self._look()

    def cut(self, error: ServingError) -> None:
        """Make ``error`` the answer, if there is none yet."""
        self._exchange.cut(ended(error))
        self._news.set()
        self._look()

    async def run(self, app: ASGIApp) -> None:
        """Let ``app`` answer; whatever it does, the stream is finished afterwards."""
        scope = self._exchange.scope
        with_whole(scope, self._whole)
        try:
            await app(scope, self, self._send)
        finally:
            self._finish()

    async def __call__(self) -> Message:
        """Return the next message: a request is the ``receive`` of its own app."""
        while (message := self._exchange.next_message()) is None:
            self._news.clear()
            await self._news.wait()
        return message

    def at_once(self) -> Message | None:
        """Return the rest of the body if it is complete, else None."""
        return self._exchange.rest()

    def watch(self, told: Ended | None) -> None:
        """Call ``told`` with the disconnect once it comes, perhaps at once; None: no more."""
        self._told = told
        self._look()

    def _look(self) -> None:
        end = self._exchange.end
        if self._told is not None and end is not None:
            self._told(end)

    def _see_if_wanted(self) -> None:
        """Note a STOP_SENDING that is told in the next turn only: no frame may follow it."""
        if not self._session.takes_answer(self._stream_id):
            self._exchange.disconnect()

    def _whole(self, status: int, headers: Fields, body: bytes) -> bool:
        self._see_if_wanted()
        head = self._exchange.whole(status, headers)
        if head is not None:
            self._session.answer(self._stream_id, head, body)
            self.sent_bytes += len(body)
            self._transmit()
        elif not self._exchange.disconnected:
            return False
        return True

    async def _send(self, message: Message) -> None:
        self._see_if_wanted()
        frames = self._exchange.send(message)
        if frames is None:
            return
        if frames.headers is not None:
            self._session.send_headers(self._stream_id, frames.headers)
        if frames.data or frames.end:
            self._session.send_data(self._stream_id, frames.data, frames.end)
            self.sent_bytes += len(frames.data)
        self._transmit()

    def _finish(self) -> None:
        if self._exchange.answered:
            # RFC 9114 4.1: a complete answer may precede the end of its request.
            self._session.stop_reading(self._stream_id)
        elif self._exchange.disconnected:
            self._session.abort(self._stream_id, ErrorCode.H3_REQUEST_CANCELLED)
        else:
            self._session.abort(self._stream_id, ErrorCode.H3_INTERNAL_ERROR)
        self._transmit()
