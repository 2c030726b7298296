"""What every transport over TCP can be told about where it listens and how it is protected."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from transports.tls import TlsFiles
from transports.unix import UnixAddress

MAX_CONNECTIONS = 1 << 20


# No slots: of a class's bases only one may have them, and a transport's options have others.
@dataclass(frozen=True)
class EndpointOptions:
    """Set TLS on the TCP port, and a Unix domain socket beside it or in its place."""

    certificate: str = field(
        default="", metadata={"help": "PEM file, the chain to show; empty: no TLS"}
    )
    private_key: str = field(default="", metadata={"help": "PEM file of the certificate's key"})
    client_ca: str = field(
        default="",
        metadata={"help": "PEM file of the authorities that sign clients' certificates"},
    )
    max_connections: int = field(
        default=16_384,
        metadata={"help": "connections at once, more are turned away"},
    )
    unix_path: str = field(
        default="", metadata={"help": "Unix domain socket to listen on, too; it speaks no TLS"}
    )
    unix_mode: str = field(
        default="600", metadata={"help": "its file mode, octal: who may write may connect"}
    )

    def check_endpoint(self, host: str) -> None:
        """Refuse what could not work, ``host`` being the TCP one. Raises ValueError."""
        check_pair(self.certificate, self.private_key)
        if self.client_ca and not self.certificate:
            raise ValueError("client_ca needs a certificate and a private_key")
        if not 1 <= self.max_connections <= MAX_CONNECTIONS:
            raise ValueError(
                f"max_connections must be 1 to {MAX_CONNECTIONS}, got {self.max_connections}"
            )
        if not re.fullmatch("0?[0-7]{3}", self.unix_mode):
            raise ValueError(f"unix_mode must be three octal digits, got {self.unix_mode!r}")
        if not host and not self.unix_path:
            raise ValueError("host is empty, so unix_path must be given")

    @property
    def tls_files(self) -> TlsFiles | None:
        """The files that TLS needs, None for no TLS."""
        if not self.certificate:
            return None
        client_ca = Path(self.client_ca) if self.client_ca else None
        return TlsFiles(Path(self.certificate), Path(self.private_key), client_ca)

    @property
    def unix_address(self) -> UnixAddress | None:
        """The Unix domain socket, None for none."""
        return UnixAddress(self.unix_path, int(self.unix_mode, 8)) if self.unix_path else None


def check_pair(certificate: str, private_key: str) -> None:
    """Raise ValueError for one file of a pair."""
    if bool(certificate) != bool(private_key):
        raise ValueError("certificate and private_key must be given together")
