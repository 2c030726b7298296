"""What tracing can be told."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TracingOptions:
    """Choose where spans go, and of how many requests."""

    endpoint: str = field(
        default="",
        metadata={"help": "URL of an OTLP collector, such as http://127.0.0.1:4317; none: off"},
    )
    protocol: str = field(
        default="grpc", metadata={"help": "how it is spoken to: grpc or http (protobuf)"}
    )
    ratio: float = field(
        default=1.0,
        metadata={"help": "share of the requests traced that are in no trace; others as it says"},
    )
    service_name: str = field(default="narsil", metadata={"help": "service.name of the spans"})

    def __post_init__(self) -> None:
        """Refuse what could not work. Raises ValueError."""
        if self.endpoint and not self.endpoint.startswith(("http://", "https://")):
            raise ValueError(f"endpoint must be an http:// or https:// URL, got {self.endpoint!r}")
        if "@" in self.endpoint:
            raise ValueError(
                "endpoint must have no password; headers go to OTEL_EXPORTER_OTLP_HEADERS"
            )
        if self.protocol not in ("grpc", "http"):
            raise ValueError(f"protocol must be grpc or http, got {self.protocol!r}")
        if not 0 <= self.ratio <= 1:
            raise ValueError(f"ratio must be from 0 to 1, got {self.ratio:g}")
