"""aioquic's HTTP/3 with the bounds and the stream errors it leaves to its caller.

The one module that reaches into the library's HTTP/3 layer.
"""

from collections.abc import Iterator

import pylsqpack
from aioquic.h3.connection import (
    ErrorCode,
    FrameType,
    H3Connection,
    H3Stream,
    HeadersState,
    MessageError,
    ProtocolError,
    QpackDecompressionFailed,
    Setting,
    encode_frame,
    stream_is_request_response,
    validate_request_headers,
)
from aioquic.h3.events import DataReceived, H3Event, Headers, HeadersReceived
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import QuicEvent, StopSendingReceived, StreamDataReceived, StreamReset
from aioquic.quic.stream import QuicStreamSender

from transports.http3.numbers import number
from transports.http3.usual import states_length, whole_answer, whole_request
from transports.ordinary import ordinary

# A head, a trailer or a SETTINGS frame of any length would be collected until it is complete.
MAX_FRAME_BYTES = 64 * 1024
# What a stream weighs beside its bytes, about.
STREAM_BYTES = 8 * 1024


@ordinary
class _ExcessiveLoadError(ProtocolError):
    error_code = ErrorCode.H3_EXCESSIVE_LOAD


class RequestAborted(H3Event):
    """The client takes no answer on this stream, or gets none after what it sent."""

    def __init__(self, stream_id: int) -> None:
        self.stream_id = stream_id


class Session(H3Connection):
    """The server's side of one connection.

    A malformed request costs its own stream, not its neighbours' (RFC 9114 4.1.2).
    """

    def __init__(self, quic: QuicConnection) -> None:
        super().__init__(quic)
        # Streams we stopped reading, until the client has stopped sending.
        self._unread: set[int] = set()
        self._next_request_id = 0
        self._rejected_from: int | None = None

    def handle_event(self, event: QuicEvent) -> list[H3Event]:
        """Return HTTP events, RequestAborted among them; a broken connection is closed."""
        if isinstance(event, StreamDataReceived) and event.stream_id in self._unread:
            if event.end_stream:
                self._unread.discard(event.stream_id)
            return []
        if isinstance(event, StreamReset) and event.stream_id in self._unread:
            self._unread.discard(event.stream_id)
            return []
        events = super().handle_event(event)
        if isinstance(event, StreamReset | StopSendingReceived):
            return [RequestAborted(event.stream_id)]
        return events

    def answer(self, stream_id: int, headers: Headers, body: bytes) -> None:
        """Send all of an answer."""
        stream = self._stream.get(stream_id)
        if stream is None or self._quic_logger is not None:
            self.send_headers(stream_id, headers)
            self.send_data(stream_id, body, end_stream=True)
            return
        encoded, block = self._encoder.encode(stream_id, headers)
        if encoded and self._local_encoder_stream_id is not None:
            self._quic.send_stream_data(self._local_encoder_stream_id, encoded)
        stream.headers_send_state = HeadersState.AFTER_HEADERS
        stream.finish_sending()
        if stream.is_ended():
            del self._stream[stream_id]
        self._quic.send_stream_data(stream_id, whole_answer(block, body), end_stream=True)

    def takes_answer(self, stream_id: int) -> bool:
        """Whether the client has not said yet that it wants no answer on this stream."""
        stream = self._quic._streams.get(stream_id)  # noqa: SLF001  # no public word for it
        return stream is not None and stream.sender._reset_error_code is None  # noqa: SLF001

    def forget(self, stream_id: int) -> None:
        """Ignore a request that has been given up, and what still comes of it."""
        stream = self._stream.pop(stream_id, None)
        if stream is not None and not stream.receiving_ended:
            self._unread.add(stream_id)

    def stop_reading(self, stream_id: int, error_code: int = ErrorCode.H3_NO_ERROR) -> None:
        """Ask the client to send no more of a request, and ignore what still comes."""
        stream = self._stream.get(stream_id)
        if stream is None or stream.receiving_ended:
            return
        self._unread.add(stream_id)
        self._quic.stop_stream(stream_id, error_code)
        super().handle_event(StreamReset(error_code=error_code, stream_id=stream_id))

    def abort(self, stream_id: int, error_code: int) -> None:
        """Give up a request and its answer."""
        self._quic.reset_stream(stream_id, error_code)
        stream = self._stream.get(stream_id)
        if stream is None:
            return
        stream.sending_ended = True
        if stream.receiving_ended:
            self._stream.pop(stream_id)
        else:
            self.stop_reading(stream_id, error_code)

    def go_away(self) -> None:
        """Take no requests but those that have begun (RFC 9114 5.2)."""
        if self._rejected_from is None and self._local_control_stream_id is not None:
            self._rejected_from = self._next_request_id
            frame = encode_frame(FrameType.GOAWAY, number(self._rejected_from))
            self._quic.send_stream_data(self._local_control_stream_id, frame)

    @property
    def delivered(self) -> bool:
        """The client has acknowledged every byte of every answer."""
        return next(self._unfinished(), None) is None

    @property
    def unsent_bytes(self) -> int:
        """What is held for answers that the client has not acknowledged."""
        return sum(STREAM_BYTES + len(sender._buffer) for sender in self._unfinished())  # noqa: SLF001

    def _unfinished(self) -> Iterator[QuicStreamSender]:
        # aioquic has no public word for it, and closing earlier would cut answers short.
        for stream in self._quic._streams.values():  # noqa: SLF001
            number, sender = stream.stream_id, stream.sender
            is_request = number is not None and stream_is_request_response(number)
            if is_request and not sender.is_finished:
                yield sender

    def _get_local_settings(self) -> dict[int, int]:
        # Without blocked streams nothing of a request waits behind another stream's bytes, so
        # the bound below holds for every frame. CONNECT for WebSocket is not served.
        settings = super()._get_local_settings()
        settings[Setting.QPACK_BLOCKED_STREAMS] = 0
        del settings[Setting.ENABLE_CONNECT_PROTOCOL]
        return settings

    def _receive_stream_data(self, event: StreamDataReceived) -> list[H3Event]:
        stream_id = event.stream_id
        if not stream_is_request_response(stream_id):
            events = super()._receive_stream_data(event)
        elif self._rejected_from is not None and stream_id >= self._rejected_from:
            events = self._reject(event)
        else:
            self._next_request_id = max(self._next_request_id, stream_id + 4)
            events = self._receive_request_data(event)
        stream = self._stream.get(stream_id)
        if stream is not None and len(stream.buffer) > MAX_FRAME_BYTES:
            raise _ExcessiveLoadError(f"a frame exceeds the limit of {MAX_FRAME_BYTES} bytes")
        return events

    def _receive_request_data(self, event: StreamDataReceived) -> list[H3Event]:
        try:
            whole = self._receive_whole(event)
            return super()._receive_stream_data(event) if whole is None else whole
        except MessageError:
            self.abort(event.stream_id, ErrorCode.H3_MESSAGE_ERROR)
            return [RequestAborted(event.stream_id)]

    def _receive_whole(self, event: StreamDataReceived) -> list[H3Event] | None:
        """Take a request of the usual kind that is all there; None if it is not."""
        stream_id = event.stream_id
        if not event.end_stream or stream_id in self._stream or self._quic_logger is not None:
            return None
        found = whole_request(event.data)
        if found is None or len(found[0]) > MAX_FRAME_BYTES:
            return None
        block, body = found
        stream = self._stream[stream_id] = H3Stream(stream_id)
        stream.receiving_ended = True
        headers = self._decode_headers(stream_id, block)
        if not states_length(headers, len(body)):
            validate_request_headers(headers, stream)
            stream.content_length = len(body)
            self._check_content_length(stream)
        stream.headers_recv_state = HeadersState.AFTER_HEADERS
        return [
            HeadersReceived(headers, stream_id, stream_ended=False),
            DataReceived(body, stream_id, stream_ended=True),
        ]

    def _decode_headers(self, stream_id: int, frame_data: bytes | None) -> Headers:
        assert frame_data is not None  # None would be a stream's that was blocked
        try:
            told, headers = self._decoder.feed_header(stream_id, frame_data)
        except (pylsqpack.DecompressionFailed, pylsqpack.StreamBlocked) as error:
            # RFC 9204 2.1.2: of blocked streams there may be none, as our settings say.
            raise QpackDecompressionFailed from error
        if told and self._local_decoder_stream_id is not None:
            self._quic.send_stream_data(self._local_decoder_stream_id, told)
        return headers

    def _reject(self, event: StreamDataReceived) -> list[H3Event]:
        self._quic.reset_stream(event.stream_id, ErrorCode.H3_REQUEST_REJECTED)
        if not event.end_stream:
            self._unread.add(event.stream_id)
            self._quic.stop_stream(event.stream_id, ErrorCode.H3_REQUEST_REJECTED)
        return []
