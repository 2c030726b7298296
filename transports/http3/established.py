"""aioquic's connection with a shorter way for what an established one receives.

Most of what a datagram costs in aioquic are checks and copies that only a handshake, a migration,
a key update or a log needs. A packet of the usual kind (short header, the active path and
connection id, the current keys) is taken here by the same steps without them; and if it is one
STREAM frame of a stream that is open, as most of an upload is, so is the frame. Whatever is not of
that kind, does not decrypt or breaks a limit goes the library's own way from its first byte, before
anything here has changed. The library is pinned; what is used of its private parts is in
docs/decisions/0033.
"""

from collections.abc import Sequence

from aioquic._crypto import CryptoError
from aioquic.quic.connection import (
    END_STATES,
    QuicConnection,
    QuicConnectionError,
    QuicConnectionId,
    QuicReceiveContext,
)
from aioquic.quic.crypto import CryptoContext
from aioquic.quic.packet import QuicStreamFrame, decode_packet_number
from aioquic.quic.recovery import MAX_ACK_RANGES, QuicPacketSpace
from aioquic.quic.stream import FinalSizeError
from aioquic.tls import Epoch

from transports.http3.bulk import Address
from transports.http3.numbers import pull_number
from transports.http3.steering import Steering
from transports.ordinary import ordinary

# The first two bits of a short header, and what protection hides of its first byte (RFC 9000 17.3).
_FORM, _SHORT = 0xC0, 0x40
_SPIN, _RESERVED, _KEY_PHASE = 0x20, 0x18, 0x04
_PROTECTED, _NUMBER_SIZE = 0x1F, 0x03
# Where header protection samples: behind the longest packet number (RFC 9001 5.4.2).
_NUMBER_BYTES, _SAMPLE_BYTES = 4, 16
# STREAM frames, and the bits that say what they have (RFC 9000 19.8).
_STREAM, _STREAM_MASK, _OFFSET, _LENGTH, _FIN = 0x08, 0xF8, 0x04, 0x02, 0x01


@ordinary
class EstablishedQuic(QuicConnection):
    """A connection; ``receive_datagrams`` is the quick way in."""

    # Once established: whose keys decrypt, and where packet numbers are counted.
    _usual: tuple[CryptoContext, QuicPacketSpace] | None = None
    _steering = Steering()

    @classmethod
    def adopted(cls, quic: QuicConnection, steering: Steering) -> "EstablishedQuic":
        """Return ``quic`` itself as one: aioquic's server makes its connections itself.

        It is new, and the ids that it gives out lead where ``steering`` says.
        """
        quic.__class__ = cls
        assert isinstance(quic, cls)
        quic.begin(steering)
        return quic

    def begin(self, steering: Steering) -> None:
        """Give out ids that ``steering`` makes, from the first on."""
        self._steering = steering
        self._steer(self._host_cids)
        self.host_cid = self._local_initial_source_connection_id = self._host_cids[0].cid

    def _replenish_connection_ids(self) -> None:
        known = len(self._host_cids)
        super()._replenish_connection_ids()
        self._steer(self._host_cids[known:])

    def _steer(self, made: Sequence[QuicConnectionId]) -> None:
        for one in made:
            one.cid = self._steering.connection_id(len(one.cid))

    def receive_datagrams(self, datagrams: Sequence[bytes], address: Address, now: float) -> None:
        """Take datagrams of one sender, in order, as ``receive_datagram`` would."""
        usual, taken = self._takes_usual(address), False
        for datagram in datagrams:
            if usual and self._receive_usual(datagram, now):
                taken = True
                usual = not self._ending
            else:
                self.receive_datagram(datagram, address, now)
                usual = self._takes_usual(address)
        if taken and not self._ending:
            self._close_at = now + self._idle_timeout()
            self._ack_eliciting_sent_since_receipt = False

    @property
    def _ending(self) -> bool:
        return self._close_pending or self._state in END_STATES

    def _takes_usual(self, address: Address) -> bool:
        """Say whether the next packet may be of the usual kind."""
        if self._usual is None:
            keys = self._cryptos.get(Epoch.ZERO_RTT)
            if not self._handshake_confirmed or (keys is not None and keys.recv.is_valid()):
                return False
            self._usual = self._cryptos[Epoch.ONE_RTT].recv, self._spaces[Epoch.ONE_RTT]
        path = self._network_paths[0]
        return (
            path.is_validated
            and path.addr == address
            and not self._ending
            and self._quic_logger is None
        )

    def _receive_usual(self, data: bytes, now: float) -> bool:
        """Take a packet of the usual kind; return whether it was one."""
        assert self._usual is not None
        crypto, space = self._usual
        assert crypto.hp is not None
        assert crypto.aead is not None
        number_at = 1 + len(self.host_cid)
        if not data or data[0] & _FORM != _SHORT or data[1:number_at] != self.host_cid:
            return False
        sample = data[number_at + _NUMBER_BYTES : number_at + _NUMBER_BYTES + _SAMPLE_BYTES]
        if len(sample) < _SAMPLE_BYTES:
            return False
        mask = crypto.hp._mask(sample)  # noqa: SLF001  # remove() copies thrice
        first = data[0] ^ (mask[0] & _PROTECTED)
        if first & _RESERVED or bool(first & _KEY_PHASE) != bool(crypto.key_phase):
            return False
        size = (first & _NUMBER_SIZE) + 1
        truncated = _number(data[number_at : number_at + size]) ^ _number(mask[1 : 1 + size])
        head = bytes((first,)) + self.host_cid + truncated.to_bytes(size, "big")
        number = decode_packet_number(truncated, 8 * size, space.expected_packet_number)
        try:
            plain = crypto.aead.decrypt(data[len(head) :], head, number)
        except CryptoError:
            return False
        if number not in space.received_packets:
            self._take(plain, number, bool(first & _SPIN), now)
        return True

    def _take(self, plain: bytes, number: int, spin: bool, now: float) -> None:
        assert self._usual is not None
        space = self._usual[1]
        if number > space.expected_packet_number:
            space.expected_packet_number = number + 1
        if number > self._spin_highest_pn:
            self._spin_bit = spin != self._is_client
            self._spin_highest_pn = number
        eliciting = self._take_stream(plain) or self._take_frames(plain, now)
        if self._ending:
            return
        if number > space.largest_received_packet:
            space.largest_received_packet = number
            space.largest_received_time = now
        space.ack_queue.add(number)
        space.received_packets.add(number)
        if len(space.ack_queue) > MAX_ACK_RANGES:
            space.ack_queue.shift()
        if eliciting and space.ack_at is None:
            space.ack_at = now + self._ack_delay

    def _take_frames(self, plain: bytes, now: float) -> bool:
        """Take any frames; return whether they ask for an acknowledgement."""
        path = self._network_paths[0]
        context = QuicReceiveContext(Epoch.ONE_RTT, self.host_cid, path, None, now, None)
        try:
            return self._payload_received(context, plain)[0]
        except QuicConnectionError as error:
            self._logger.warning(error)
            self.close(error.error_code, error.frame_type, error.reason_phrase)
            return False

    def _take_stream(self, plain: bytes) -> bool:
        """Take a payload that is one STREAM frame of an open stream; return whether it was."""
        kind = plain[0] if plain else 0
        if kind & _STREAM_MASK != _STREAM:
            return False
        try:
            stream_id, at = pull_number(plain, 1)
            offset, at = pull_number(plain, at) if kind & _OFFSET else (0, at)
            length, at = pull_number(plain, at) if kind & _LENGTH else (len(plain) - at, at)
        except IndexError:
            return False
        stream = self._streams.get(stream_id)
        # What this end opened is left to the library: it may be for sending only.
        if stream is None or at + length != len(plain) or (stream_id & 1) != self._is_client:
            return False
        end, limit = offset + length, self._local_max_data
        fresh = max(0, end - stream.receiver.highest_offset)
        if end > stream.max_stream_data_local or limit.used + fresh > limit.value:
            return False
        frame = QuicStreamFrame(data=plain[at:], offset=offset, fin=bool(kind & _FIN))
        try:
            event = stream.receiver.handle_frame(frame)
        except FinalSizeError:
            return False
        if event is not None:
            self._events.append(event)
        limit.used += fresh
        return True


def _number(data: bytes) -> int:
    return int.from_bytes(data, "big")
