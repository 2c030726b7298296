"""The short way in for established QUIC connections does what aioquic's own does."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated, QuicEvent, StreamDataReceived, StreamReset
from aioquic.quic.packet import QuicErrorCode
from aioquic.tls import Epoch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transports.http3.established import EstablishedQuic
from transports.http3.quic import joined
from transports.http3.server import Http3Options, Http3Transport
from transports.http3.steering import Steering

CLIENT, ELSEWHERE, SERVER = ("10.0.0.1", 1000), ("10.0.0.2", 2000), ("10.0.0.9", 443)


@pytest.fixture(scope="session")
def identity(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("identity")
    files = Http3Transport(Http3Options(certificate_dir=str(folder)))._files()
    return Path(files.certificate), Path(files.private_key)


@dataclass
class Pair:
    """A client and a server with the handshake behind them, and what the server was told."""

    client: QuicConnection
    server: EstablishedQuic
    now: float = 0.0
    told: list[QuicEvent] = field(default_factory=list)

    @classmethod
    def connected(cls, identity: tuple[Path, Path], window_bytes: int = 1 << 20) -> "Pair":
        own = QuicConfiguration(is_client=False, alpn_protocols=["h3"])
        own.load_cert_chain(*identity)
        own.max_stream_data = window_bytes
        other = QuicConfiguration(alpn_protocols=["h3"], server_name="localhost")
        other.load_verify_locations(str(identity[0]))
        client = QuicConnection(configuration=other)
        client.connect(SERVER, 0.0)
        quic = QuicConnection(
            configuration=own,
            original_destination_connection_id=client.original_destination_connection_id,
        )
        pair = cls(client, EstablishedQuic.adopted(quic, Steering()))
        for _ in range(4):
            pair.deliver(pair.sent())
            pair.answer()
        pair.told.clear()
        return pair

    def sent(self) -> list[bytes]:
        """Return what the client sends now."""
        self.now += 0.01
        return [data for data, _ in self.client.datagrams_to_send(self.now)]

    def deliver(
        self, datagrams: Sequence[bytes], address: tuple[str, int] = CLIENT, short: bool = True
    ) -> None:
        """Give ``datagrams`` to the server, by the short way or by the library's own."""
        if short:
            self.server.receive_datagrams(datagrams, address, self.now)
        else:
            for datagram in datagrams:
                self.server.receive_datagram(datagram, address, self.now)
        self.told += joined(iter(self.server.next_event, None))

    def answer(self) -> list[tuple[str, int]]:
        """Give the client what the server sends now; return the addresses it went to."""
        self.now += 0.01
        out = self.server.datagrams_to_send(self.now)
        for data, _ in out:
            self.client.receive_datagram(data, SERVER, self.now)
        while self.client.next_event() is not None:
            pass
        return [address for _, address in out]

    def state(self) -> tuple[object, ...]:
        """Return all that what was received has changed, and what the server was told."""
        server, space = self.server, self.server._spaces[Epoch.ONE_RTT]
        told: dict[int, tuple[bytes, bool]] = {}
        for event in self.told:
            if isinstance(event, StreamDataReceived):
                data, _ = told.get(event.stream_id, (b"", False))
                told[event.stream_id] = (data + event.data, event.end_stream)
        return (
            told,
            [type(event) for event in self.told if not isinstance(event, StreamDataReceived)],
            [(r.start, r.stop) for r in space.ack_queue],
            space.largest_received_packet,
            space.expected_packet_number,
            space.largest_received_time,
            space.ack_at,
            server._local_max_data.used,
            server._close_at,
            server._spin_bit,
            server._close_event,
            {number: s.receiver.highest_offset for number, s in server._streams.items()},
        )


def test_the_usual_packet_goes_the_short_way(
    identity: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair.connected(identity)
    pair.client.send_stream_data(0, bytes(3000))
    pair.deliver(pair.sent())  # opens the stream: the frame is the library's

    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(pair.server, "receive_datagram", never)
    monkeypatch.setattr(pair.server, "_payload_received", never)
    pair.client.send_stream_data(0, bytes(3000), end_stream=True)
    pair.deliver(pair.sent())
    told, *_ = pair.state()
    assert told == {0: (bytes(6000), True)}


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_order_of_whole_lost_doubled_and_broken_datagrams_ends_as_the_librarys_way(
    identity: tuple[Path, Path], data: st.DataObject
) -> None:
    sizes = data.draw(st.lists(st.integers(0, 5000), min_size=1, max_size=4), "sizes")
    ends = []
    for short in (True, False):
        pair = Pair.connected(identity)
        for number, size in enumerate(sizes):
            pair.client.send_stream_data(4 * number, bytes([number]) * size, end_stream=True)
        datagrams = pair.sent()
        if short:
            places = st.integers(0, len(datagrams) - 1)
            order = data.draw(st.lists(st.tuples(places, st.booleans()), max_size=20), "order")
        played = [
            datagrams[place][:-1] + bytes([datagrams[place][-1] ^ broken])
            for place, broken in order
        ]
        pair.deliver(played, short=short)
        ends.append(pair.state())
    assert ends[0] == ends[1]


def test_a_frame_over_the_window_ends_the_connection_as_the_librarys_way_does(
    identity: tuple[Path, Path],
) -> None:
    pair = Pair.connected(identity, window_bytes=2000)
    pair.client._remote_max_stream_data_bidi_remote = 1 << 20
    pair.client.send_stream_data(0, bytes(4000))
    pair.deliver(pair.sent())
    assert pair.server._close_event is not None
    assert pair.server._close_event.error_code == QuicErrorCode.FLOW_CONTROL_ERROR


def test_data_beyond_the_end_of_a_stream_ends_the_connection(identity: tuple[Path, Path]) -> None:
    pair = Pair.connected(identity)
    pair.client.send_stream_data(0, bytes(10), end_stream=True)
    pair.client.send_stream_data(4, bytes(10))
    pair.deliver(pair.sent())
    stream = pair.client._streams[0].sender
    stream._buffer_fin = None
    stream.write(bytes(1500))
    pair.deliver(pair.sent())
    assert pair.server._close_event is not None
    assert pair.server._close_event.error_code == QuicErrorCode.FINAL_SIZE_ERROR


def test_resets_pings_and_closes_arrive_between_usual_packets(identity: tuple[Path, Path]) -> None:
    pair = Pair.connected(identity)
    pair.client.send_stream_data(0, bytes(2000))
    pair.client.send_ping(1)
    pair.deliver(pair.sent())
    pair.client.reset_stream(0, 7)
    pair.deliver(pair.sent())
    assert isinstance(pair.told[-1], StreamReset)
    pair.client.close()
    pair.deliver([*pair.sent(), b"\x40" + bytes(40)])
    pair.server.handle_timer(pair.now + 100)
    pair.deliver([])
    assert isinstance(pair.told[-1], ConnectionTerminated)


def test_keys_are_updated_on_the_way(identity: tuple[Path, Path]) -> None:
    pair = Pair.connected(identity)
    for number in range(3):
        pair.client.request_key_update()
        pair.client.send_stream_data(0, bytes([number]) * 2500)
        pair.deliver(pair.sent())
        pair.answer()
    told, *_ = pair.state()
    assert told == {0: (b"\0" * 2500 + b"\1" * 2500 + b"\2" * 2500, False)}
    assert pair.server._cryptos[Epoch.ONE_RTT].recv.key_phase == 1


def validated(quic: QuicConnection) -> bool:
    """Say whether the client is known to be where its datagrams come from."""
    return quic._network_paths[0].is_validated


def test_a_client_that_moves_is_followed_and_challenged(identity: tuple[Path, Path]) -> None:
    pair = Pair.connected(identity)
    pair.client.send_stream_data(0, bytes(100))
    pair.deliver(pair.sent())
    pair.client.send_stream_data(0, bytes(100))
    pair.deliver(pair.sent(), ELSEWHERE)
    assert set(pair.answer()) == {ELSEWHERE}
    assert not validated(pair.server)
    pair.deliver(pair.sent(), ELSEWHERE)
    assert validated(pair.server)
    assert pair.server.get_peer_address() == ELSEWHERE


@given(data=st.binary(max_size=60), valid_cid=st.booleans())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_arbitrary_bytes_change_nothing(
    identity: tuple[Path, Path], data: bytes, valid_cid: bool
) -> None:
    pair = Pair.connected(identity)
    before = pair.state()
    pair.deliver([b"\x40" + pair.server.host_cid + data if valid_cid else data])
    assert pair.state() == before


def test_pieces_of_a_stream_are_joined_up_to_another_event() -> None:
    def piece(stream_id: int, data: bytes, end: bool = False) -> StreamDataReceived:
        return StreamDataReceived(data=data, end_stream=end, stream_id=stream_id)

    reset = StreamReset(error_code=0, stream_id=8)
    events = [piece(0, b"a"), piece(4, b"x"), piece(0, b"b"), reset, piece(0, b"c", end=True)]
    assert list(joined(events)) == [
        piece(0, b"ab"),
        piece(4, b"x"),
        reset,
        piece(0, b"c", end=True),
    ]
