"""What can be set about the collective transport."""

from dataclasses import dataclass, field

BACKENDS = ("gloo", "nccl")
PLUGINS = ("", "uccl")
_BYTES_MAX = 1 << 40
_DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class CollectiveOptions:
    """Where callers come to, how tensors travel, and what to bound."""

    host: str = field(default="127.0.0.1", metadata={"help": "address to listen on, and of gloo"})
    port: int = field(default=50061, metadata={"help": "TCP port of the control channel; 0: free"})
    backend: str = field(
        default="gloo", metadata={"help": f"what carries tensors: {' or '.join(BACKENDS)}"}
    )
    device: str = field(
        default="cuda:0", metadata={"help": "where nccl receives; gloo is on the CPU"}
    )
    nccl_plugin: str = field(
        default="", metadata={"help": "network plug-in of nccl: uccl, or empty for NCCL's own"}
    )
    max_connections: int = field(
        default=64, metadata={"help": "callers at once; each has a process of its own"}
    )
    max_message_bytes: int = field(
        default=64 << 20, metadata={"help": "largest request and answer, in bytes"}
    )
    max_buffered_bytes: int = field(
        default=512 << 20,
        metadata={"help": "bytes of all requests held at once; more is refused as overload"},
    )
    connect_timeout_s: float = field(
        default=10.0, metadata={"help": "seconds a caller has to come and meet its process"}
    )
    transfer_timeout_s: float = field(
        default=10.0, metadata={"help": "seconds one request's or answer's tensors may travel"}
    )

    def __post_init__(self) -> None:
        """Refuse what could not work. Raises ValueError."""
        if self.backend not in BACKENDS:
            raise ValueError(f"backend must be {' or '.join(BACKENDS)}, got {self.backend!r}")
        if self.nccl_plugin not in PLUGINS:
            raise ValueError(f"nccl_plugin must be uccl or empty, got {self.nccl_plugin!r}")
        if self.nccl_plugin and self.backend != "nccl":
            raise ValueError(f"nccl_plugin {self.nccl_plugin} needs backend nccl")
        self._check("port", 0, 65535)
        self._check("max_connections", 1, 65535)
        self._check("max_message_bytes", 1, _BYTES_MAX)
        self._check("max_buffered_bytes", self.max_message_bytes, _BYTES_MAX)
        self._check("connect_timeout_s", 0.001, _DAY_S)
        self._check("transfer_timeout_s", 0.001, _DAY_S)

    def _check(self, name: str, least: float, most: float) -> None:
        value = getattr(self, name)
        if not least <= value <= most:  # nor is NaN
            raise ValueError(f"{name} must be {least} to {most}, got {value}")
