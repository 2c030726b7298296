"""A SEQPACKET socket on the loop: what is said within one turn of it leaves in one packet."""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable

from app.frontends.wire import MAX_PACKET_BYTES, Frame, Unpacker, WireError, packed

logger = logging.getLogger(__name__)

# Then others have their turn.
_PACKETS_PER_WAKE_UP = 16
# Packets the kernel holds for a side that is busy.
_BUFFER_BYTES = 1024 * 1024


class Channel:
    """Pass frames on to ``received``; ``lost`` hears once, with why, when the other side is gone.

    A frame that ``received`` refuses with a WireError also ends it.
    """

    def __init__(
        self,
        connected: socket.socket,
        received: Callable[[Frame], None],
        lost: Callable[[str], None],
    ) -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        self._socket = connected
        self._received = received
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._unpacker = Unpacker()
        self._frames: list[Frame] = []
        self._packets: deque[bytes] = deque()
        self._received_packets = 0
        self._waiting_bytes = 0
        self._flushing = False
        self._writing = False
        self._loop.add_reader(connected, self._readable)

    @property
    def open(self) -> bool:
        """Whether anything said now may be heard."""
        return self._socket.fileno() >= 0

    @property
    def received_packets(self) -> int:
        """How many packets have come."""
        return self._received_packets

    @property
    def waiting_bytes(self) -> int:
        """What the kernel does not take, since the other side is slow, or hangs."""
        return self._waiting_bytes

    def send(self, frame: Frame) -> None:
        """Say ``frame`` at the end of this turn of the loop; nothing, once the other is gone."""
        if not self.open:
            return
        self._frames.append(frame)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Say now what is to be said, as far as the kernel takes it."""
        self._flushing = False
        if not self.open:
            return
        for packet in packed(self._frames):
            self._packets.append(packet)
            self._waiting_bytes += len(packet)
        self._frames.clear()
        while self._packets:
            try:
                self._socket.send(self._packets[0])
            except BlockingIOError:
                break
            except OSError as error:
                self._end(str(error))
                return
            self._waiting_bytes -= len(self._packets.popleft())
        self._await_room(bool(self._packets))

    def close(self) -> None:
        """Hang up; ``lost`` is not called."""
        if self.open:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()

    def _await_room(self, wanted: bool) -> None:
        if wanted and not self._writing:
            self._loop.add_writer(self._socket, self.flush)
        elif self._writing and not wanted:
            self._loop.remove_writer(self._socket)
        self._writing = wanted

    def _readable(self) -> None:
        for _ in range(_PACKETS_PER_WAKE_UP):
            try:
                packet = self._socket.recv(MAX_PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError as reason:
                self._end(str(reason))
                return
            if not packet:
                self._end("it has gone")
                return
            self._received_packets += 1
            try:
                for frame in self._unpacker.feed(packet):
                    self._received(frame)
            except WireError as error:
                logger.error("not understood: %s", error)  # noqa: TRY400  # not a bug of ours here
                self._end(f"not understood: {error}")
                return
            if not self.open:
                return

    def _end(self, why: str) -> None:
        self.close()
        self._frames.clear()
        self._packets.clear()
        self._lost(why)
