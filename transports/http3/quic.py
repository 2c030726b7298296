"""aioquic's asyncio protocol, taking and sending many datagrams at once.

All datagrams of a wake-up are taken in, then the pieces of one stream are told as one, and what
that leads to is sent once: after the tasks that it started have had their turn.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import (
    ConnectionIdIssued,
    ConnectionIdRetired,
    ConnectionTerminated,
    QuicEvent,
    StreamDataReceived,
)

from transports.http3.bulk import Address
from transports.http3.established import EstablishedQuic
from transports.http3.udp import UdpTransport


class QuicProtocol(QuicConnectionProtocol):
    """A connection, of a client or a server."""

    _udp: UdpTransport

    def __init__(self, quic: QuicConnection) -> None:
        super().__init__(quic)
        self._telling: asyncio.Handle | None = None
        self._flush: asyncio.Handle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport to send with."""
        super().connection_made(transport)
        assert isinstance(transport, UdpTransport)
        self._udp = transport

    def datagram_received(self, data: bytes | str, addr: Address) -> None:
        """Take one datagram, of a handshake: others may ask at once how far it is."""
        if isinstance(data, bytes):
            self._quic.receive_datagram(data, addr, self._loop.time())
            self._tell()

    def datagrams_received(self, datagrams: Sequence[bytes], address: Address) -> None:
        """Take what one sender sent; what it means is told at the end of this wake-up."""
        now = self._loop.time()
        if isinstance(self._quic, EstablishedQuic):
            self._quic.receive_datagrams(datagrams, address, now)
        else:
            for datagram in datagrams:
                self._quic.receive_datagram(datagram, address, now)
        if self._telling is None:
            self._telling = self._loop.call_soon(self._tell)

    def transmit(self) -> None:
        """Send what is due, after everything else that is due in this turn of the loop."""
        if self._flush is None:
            self._flush = self._loop.call_soon(self.transmit_now)

    def transmit_now(self) -> None:
        """Send what is due."""
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        datagrams = self._quic.datagrams_to_send(self._loop.time())
        if datagrams:
            self._udp.send_all(datagrams)
        self._arm()

    def close_now(self, error_code: int) -> None:
        """Close the connection and leave no timer behind."""
        self._quic.close(error_code=error_code)
        self.transmit_now()
        if self._timer is not None:
            self._timer.cancel()

    def _tell(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        self._process_events()
        self.transmit()

    def _process_events(self) -> None:
        for event in joined(iter(self._quic.next_event, None)):
            if isinstance(event, ConnectionIdIssued):
                self._connection_id_issued_handler(event.connection_id)
            elif isinstance(event, ConnectionIdRetired):
                self._connection_id_retired_handler(event.connection_id)
            elif isinstance(event, ConnectionTerminated):
                self._connection_terminated_handler()
            self.quic_event_received(event)

    def _arm(self) -> None:
        """Have a timer that ends no later than something is due: an earlier one may stay."""
        due = self._quic.get_timer()
        if self._timer is not None:
            if due is not None and self._timer_at is not None and self._timer_at <= due:
                return
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._timer = self._loop.call_at(due, self._handle_timer)
            self._timer_at = due

    def _handle_timer(self) -> None:
        # The loop's clock is coarse: the timer may ring before its time.
        now = max(self._timer_at or 0.0, self._loop.time())
        self._timer = None
        due = self._quic.get_timer()
        if due is None or due > now:
            self._arm()
            return
        self._quic.handle_timer(now)
        self._process_events()
        self.transmit_now()


def joined(events: Iterable[QuicEvent]) -> Iterator[QuicEvent]:
    """Yield ``events``, but what comes of one stream without another event between as one."""
    pieces: dict[int, list[StreamDataReceived]] = {}
    for event in events:
        if isinstance(event, StreamDataReceived):
            pieces.setdefault(event.stream_id, []).append(event)
        else:
            yield from map(_whole, pieces.values())
            pieces.clear()
            yield event
    yield from map(_whole, pieces.values())


def _whole(pieces: Sequence[StreamDataReceived]) -> StreamDataReceived:
    last = pieces[-1]
    if len(pieces) == 1:
        return last
    data = b"".join(piece.data for piece in pieces)
    return StreamDataReceived(data=data, end_stream=last.end_stream, stream_id=last.stream_id)
