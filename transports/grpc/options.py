"""What can be set about gRPC, whichever engine speaks it."""

from dataclasses import dataclass, field

from transports.endpoint import EndpointOptions

_INT_MAX = (1 << 31) - 1
_BUFFER_MAX = 1 << 40
# Room above the limit, where the handler refuses with a message that names the option; grpcio
# itself refuses what is larger still, before it is read.
HEADROOM = 9 / 8
ENGINES = ("nghttp2", "grpcio")


@dataclass(frozen=True, slots=True)
class GrpcOptions(EndpointOptions):
    """Where to listen and what to bound. With ``client_ca``, clients must show a certificate."""

    engine: str = field(
        default="nghttp2", metadata={"help": f"who speaks HTTP/2: {' or '.join(ENGINES)}"}
    )
    host: str = field(
        default="127.0.0.1",
        metadata={"help": "address to listen on; empty: only unix_path, no TCP"},
    )
    port: int = field(default=50051, metadata={"help": "TCP port; 0 takes a free one"})
    max_message_bytes: int = field(
        default=64 << 20, metadata={"help": "largest request and answer, in bytes"}
    )
    max_buffered_bytes: int = field(
        default=512 << 20,
        metadata={
            "help": "bytes of all requests held at once, unpacked ones too; more is answered with "
            "RESOURCE_EXHAUSTED (engine nghttp2)"
        },
    )
    max_concurrent_streams: int = field(
        default=1024, metadata={"help": "calls one connection may have open at once"}
    )
    max_connection_age_s: float = field(
        default=0.0,
        metadata={
            "help": "seconds after which clients are told to reconnect, so that a level 4 load "
            "balancer can spread them; 0 never"
        },
    )
    reflection: bool = field(
        default=True, metadata={"help": "describe the services to clients such as grpcurl"}
    )

    def __post_init__(self) -> None:
        """Refuse what grpcio would bend to something else in silence. Raises ValueError."""
        if self.engine not in ENGINES:
            raise ValueError(f"engine must be {' or '.join(ENGINES)}, got {self.engine!r}")
        self._check("port", 0, 65535)
        self.check_endpoint(self.host)
        self._check("max_message_bytes", 1, int(_INT_MAX / HEADROOM))
        # Twice: a packed message and what it unpacks to.
        self._check("max_buffered_bytes", 2 * self.max_message_bytes, _BUFFER_MAX)
        self._check("max_concurrent_streams", 1, _INT_MAX)
        self._check("max_connection_age_s", 0, _INT_MAX // 1000)  # grpcio counts milliseconds

    def _check(self, name: str, least: int, most: int) -> None:
        value = getattr(self, name)
        if not least <= value <= most:  # nor is NaN
            raise ValueError(f"{name} must be {least} to {most}, got {value}")
