"""What a front end is told at its start, by the process that has read the configuration."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.tracing.options import TracingOptions

# One message of a SEQPACKET socket.
MAX_SETTINGS_BYTES = 128 * 1024


@dataclass(frozen=True, slots=True)
class FrontEndSettings:
    """One front end's: its ``number``, and the descriptor of its ``memory``.

    ``transports`` has the options of each by name, ``shares`` the fields of its Share.
    ``ledger`` is the descriptor of what keys have left, -1 for none; ``hung_s`` is how long the
    engine may say nothing, 0 for ever.
    """

    number: int
    memory: int
    transports: Mapping[str, Mapping[str, Any]]
    shares: Mapping[str, tuple[int, ...]]
    api_keys: str = ""
    ledger: int = -1
    hung_s: float = 0.0
    log_level: str = "info"
    log_format: str = "text"
    tracing: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tracing_options(self) -> TracingOptions:
        """How requests are traced."""
        return TracingOptions(**self.tracing)
