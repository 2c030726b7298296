"""A unary call without a task: its method tells how it ends."""

from transports.grpc.methods import Answering, Arrival, Direct, Reply, Unary
from transports.grpc.nghttp2.calls import UnaryCall
from transports.grpc.nghttp2.messages import MessageReader
from transports.grpc.nghttp2.wire import Wire


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
        self._under = self._direct(body, self.arrival, self._replied)

    def _replied(self, reply: Reply) -> None:
        at_once = self._under is None  # then others may come in the same input
        self._end(reply)
        if not at_once:
            self._wire.flush_if_alone()
        self._finish()

    def _stop(self) -> None:
        super()._stop()
        if self._under is not None and not self._ended:
            self._finish()
            self._under.cancel()

    def _finish(self) -> None:
        self._ended = True
        self._wire.under_way -= 1
        self._share.close()
