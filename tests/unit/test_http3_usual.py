"""Requests and answers of the usual kind are read and written as the library would."""

from types import SimpleNamespace

import pytest
from aioquic.h3.connection import (
    CONNECTION_SPECIFIC_HEADERS,
    ErrorCode,
    H3Connection,
    H3Stream,
    MessageError,
    validate_request_headers,
)
from aioquic.h3.events import DataReceived, H3Event, HeadersReceived
from aioquic.quic.events import StreamDataReceived
from hypothesis import given
from hypothesis import strategies as st

from transports.http3.numbers import number, pull_number
from transports.http3.session import RequestAborted, Session
from transports.http3.usual import states_length, whole_answer, whole_request

HEAD = [
    (b":method", b"POST"),
    (b":scheme", b"https"),
    (b":authority", b"localhost"),
    (b":path", b"/v1/predict"),
]
NAMES = st.sampled_from([
    *(name for name, _ in HEAD), b":protocol", b"content-length", b"te", b"x", b"X", b"a b", b"",
    b":", b"a:b", b"\x7f", *sorted(CONNECTION_SPECIFIC_HEADERS),
])  # fmt: skip
VALUES = st.sampled_from([
    b"", b"3", b"03", b"+3", b"4", b"a", b" a", b"a\t", b"a\n", b"a\0", b"\xff",
])  # fmt: skip
FIELDS = st.lists(st.tuples(NAMES, VALUES), max_size=4)


class Pipe:
    """A QUIC connection without packets: what is written to a stream is kept."""

    def __init__(self, is_client: bool) -> None:
        self.configuration = SimpleNamespace(is_client=is_client)
        self._quic_logger = None
        self._remote_max_datagram_frame_size = None
        self._next_id = 2 if is_client else 3
        self.written: dict[int, bytes] = {}
        self.ended: set[int] = set()
        self.closed: list[int] = []
        self.reset: dict[int, int] = {}
        self.stopped: dict[int, int] = {}

    def get_next_available_stream_id(self, is_unidirectional: bool = False) -> int:
        assert is_unidirectional
        self._next_id += 4
        return self._next_id - 4

    def send_stream_data(self, stream_id: int, data: bytes, end_stream: bool = False) -> None:
        self.written[stream_id] = self.written.get(stream_id, b"") + data
        if end_stream:
            self.ended.add(stream_id)

    def close(self, error_code: int, reason_phrase: str) -> None:
        self.closed.append(error_code)

    def stop_stream(self, stream_id: int, error_code: int) -> None:
        self.stopped[stream_id] = error_code

    def reset_stream(self, stream_id: int, error_code: int) -> None:
        self.reset.setdefault(stream_id, error_code)  # the first one counts


def told(session: Session, data: bytes, step: int) -> tuple[object, bytes, bool] | None:
    """Return heads and body of the request in ``data``, and if it ended; None: it is aborted."""
    events: list[H3Event] = []
    for start in range(0, len(data), step):
        piece, last = data[start : start + step], start + step >= len(data)
        events += session.handle_event(StreamDataReceived(piece, last, 0))
    heads = [event.headers for event in events if isinstance(event, HeadersReceived)]
    pieces = [event for event in events if isinstance(event, DataReceived)]
    ended = any(event.stream_ended for event in pieces)
    if any(isinstance(event, RequestAborted) for event in events):
        return None
    return heads, b"".join(event.data for event in pieces), ended


@given(FIELDS, st.binary(max_size=80), st.permutations(HEAD))
def test_a_request_that_arrives_whole_is_what_its_pieces_make(
    fields: list[tuple[bytes, bytes]], body: bytes, head: list[tuple[bytes, bytes]]
) -> None:
    pipe = Pipe(is_client=True)
    client = H3Connection(pipe)  # type: ignore[arg-type] # what it needs of one
    try:
        client.send_headers(0, [*head, *fields])
    except Exception:  # noqa: BLE001 - what QPACK cannot write is no request
        return
    client.send_data(0, body, end_stream=True)
    ends = []
    for step in (1 << 20, 1):
        quic = Pipe(is_client=False)
        session = Session(quic)  # type: ignore[arg-type] # what it needs of one
        ends.append((told(session, pipe.written[0], step), quic.closed, quic.reset))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("step", [1 << 20, 1])
def test_a_header_block_that_would_wait_for_the_table_ends_the_connection(step: int) -> None:
    quic = Pipe(is_client=False)
    session = Session(quic)  # type: ignore[arg-type] # what it needs of one
    block = bytes.fromhex("0500808182")  # of a table that has had four entries
    told(session, whole_answer(block, b"{}"), step)
    assert quic.closed == [ErrorCode.QPACK_DECOMPRESSION_FAILED]


@given(FIELDS, st.integers(0, 5), st.permutations(HEAD))
def test_only_what_the_library_would_take_is_usual(
    fields: list[tuple[bytes, bytes]], length: int, head: list[tuple[bytes, bytes]]
) -> None:
    headers = [*head, *fields]
    if not states_length(headers, length):
        return
    stream = H3Stream(0)
    validate_request_headers(headers, stream)
    assert stream.expected_content_length in {None, length}


def test_what_clients_send_is_usual() -> None:
    fields = [(b"content-type", b"application/json"), (b"content-length", b"3"), (b"x-y", b"")]
    assert states_length([*HEAD, *fields], 3)
    assert not states_length([*HEAD, *fields], 4)


@given(st.binary(max_size=40))
def test_arbitrary_bytes_are_a_request_or_none(data: bytes) -> None:
    found = whole_request(data)
    if found is not None:
        block, body = found
        assert data.endswith(body)
        assert block in data


@given(st.binary(max_size=100), st.binary(max_size=70_000))
def test_an_answer_is_read_as_it_was_written(block: bytes, body: bytes) -> None:
    assert whole_request(whole_answer(block, body)) == (block, body)


@given(st.integers(0, (1 << 62) - 1))
def test_a_number_is_read_as_it_was_written(value: int) -> None:
    assert pull_number(number(value), 0) == (value, len(number(value)))


def test_a_malformed_head_costs_its_own_stream() -> None:
    pipe, quic = Pipe(is_client=True), Pipe(is_client=False)
    client = H3Connection(pipe)  # type: ignore[arg-type] # what it needs of one
    client.send_headers(0, [*HEAD, (b"te", b"gzip")])
    client.send_data(0, b"x", end_stream=True)
    with pytest.raises(MessageError):
        validate_request_headers([*HEAD, (b"te", b"gzip")])
    session = Session(quic)  # type: ignore[arg-type] # what it needs of one
    assert told(session, pipe.written[0], 1 << 20) is None
    assert quic.reset == {0: ErrorCode.H3_MESSAGE_ERROR}
    assert quic.closed == []
