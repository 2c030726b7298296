"""aioquic's asyncio protocol, sending once per turn of the loop instead of once per datagram."""

import asyncio

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic.connection import QuicConnection


class QuicProtocol(QuicConnectionProtocol):
    """A connection, of a client or a server. Sending once halves what a request costs."""

    def __init__(self, quic: QuicConnection) -> None:
        super().__init__(quic)
        self._flush: asyncio.Handle | None = None

    def transmit(self) -> None:
        """Send what is due, after everything else that is due in this turn of the loop."""
        if self._flush is None:
            self._flush = self._loop.call_soon(self.transmit_now)

    def transmit_now(self) -> None:
        """Send what is due."""
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        super().transmit()

    def close_now(self, error_code: int) -> None:
        """Close the connection and leave no timer behind."""
        self._quic.close(error_code=error_code)
        self.transmit_now()
        if self._timer is not None:
            self._timer.cancel()
