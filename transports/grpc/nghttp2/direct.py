"""A unary call without a task: its method tells how it ends."""

import logging

from transports.grpc.methods import Answering, Arrival, Direct, Reply, Unary
from transports.grpc.nghttp2.calls import FAILED, UnaryCall
from transports.grpc.nghttp2.messages import MessageReader
from transports.grpc.nghttp2.wire import Wire

logger = logging.getLogger(__name__)


class DirectCall(UnaryCall):
    """A unary call that needs no task, unless its request is to be unpacked.

    ``direct`` is its method: it tells how the call ends in the step that knows.
    """

    def __init__(
        self,
        wire: Wire,
        stream_id: int,
        arrival: Arrival,
        reader: MessageReader,
        method: Unary,
        direct: Direct,
    ) -> None:
        super().__init__(wire, stream_id, arrival, reader, method)
        self._direct = direct
        self._begun = self._ended = False
        self._under: Answering | None = None

    @property
    def owes_bytes(self) -> bool:
        """Whether the request is incomplete."""
        return not self._begun and self._task is None

    def _start(self) -> None:
        body = self._body
        if not isinstance(body, bytes):
            super()._start()
            return
        self._body, self._begun = None, True
        self._wire.under_way += 1
        try:
            under = self._direct(body, self.arrival, self._replied)
        except Exception:
            logger.exception("%s: unexpected error", self._request_id)
            self._replied(FAILED)
            return
        if not self._ended:
            self._under = under

    def _replied(self, reply: Reply) -> None:
        if self._ended:
            return
        at_once = self._under is None  # then others may come in the same input
        self._end(reply)
        if not at_once:
            self._wire.flush_if_alone()
        self._finish()

    def _stop(self) -> None:
        super()._stop()
        under = self._under
        if under is not None:
            self._finish()
            under.cancel()

    def _finish(self) -> None:
        self._ended = True
        self._under = None  # it knows this call, too: no cycle is left
        self._wire.under_way -= 1
        self._share.close()
