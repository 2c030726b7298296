"""A connection that carries messages both ways, on the event loop."""

import asyncio
from collections import deque

from transports.collective.framing import Decoder, encode
from transports.collective.messages import Message

_READ_BYTES = 1 << 16


class Channel:
    """Send messages and take them one at a time; only one task may wait for the next."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = Decoder()
        self._come: deque[Message] = deque()

    async def next(self) -> Message | None:
        """Return the next message, None once the other has gone. Raises ServingError."""
        while not self._come:
            try:
                data = await self._reader.read(_READ_BYTES)
            except OSError:  # reset, or silent for too long
                return None
            if not data:
                return None
            self._come.extend(self._decoder.feed(data))
        return self._come.popleft()

    def send(self, message: Message) -> None:
        """Send a message. It is dropped if the other has gone, which ``next`` tells."""
        self._writer.write(encode(message))

    @property
    def local_address(self) -> str:
        """The address of the interface that the other has come over."""
        address: str = self._writer.get_extra_info("sockname")[0]
        return address

    async def flush(self) -> None:
        """Wait until what was sent has left, as far as the other reads."""
        try:
            await self._writer.drain()
        except OSError:
            return

    def close(self) -> None:
        """Let go of the connection; what was sent is still on its way."""
        self._writer.close()
