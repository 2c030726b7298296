"""uvicorn's flow control with a brake of our own."""

import asyncio

from uvicorn.protocols.http.flow_control import FlowControl


class HoldableFlow(FlowControl):
    """Reads nothing while held, whatever uvicorn wants."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._held = False

    def hold(self, held: bool) -> None:
        """Stop reading, or read on."""
        if held != self._held:
            self._held = held
            (self.pause_reading if held else self.resume_reading)()

    def resume_reading(self) -> None:
        """Read on, unless held."""
        if not self._held:
            super().resume_reading()
