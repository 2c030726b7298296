"""Where a client sends to and whom it trusts: one URL and some PEM files, for every transport."""

import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

import grpc.aio
import httpx

from transports.credential import bearer

# The name in requests over a Unix domain socket, where nobody looks at it.
LOCAL = "http://localhost"
# Where a server started in this folder keeps its certificate for development.
CERTIFICATE = Path(".narsil/tls/certificate.pem")


class TargetError(Exception):
    """Say which file keeps a client from connecting."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server: ``url`` is ``unix:PATH`` or has a scheme, a host and a port.

    In TLS, ``ca`` has whom to trust and ``certificate`` and ``private_key`` what to show, if
    anything. ``api_key`` is sent with every request, "" for none.
    """

    url: str
    ca: Path
    certificate: Path | None = None
    private_key: Path | None = None
    api_key: str = ""

    @property
    def headers(self) -> dict[str, str]:
        """What every request says for its sender, over gRPC as metadata."""
        return bearer(self.api_key)

    @property
    def base(self) -> str:
        """What HTTP paths are put behind."""
        return LOCAL if self._unix_path else self.url

    def http_client(self) -> httpx.AsyncClient:
        """Return a client of HTTP/1.1. Raises TargetError."""
        if self._unix_path:
            transport = httpx.AsyncHTTPTransport(uds=self._unix_path)
            return httpx.AsyncClient(timeout=60, transport=transport)
        # Without TLS a context that trusts nobody will do; httpx's own reads a whole store first.
        plain = not self.url.startswith("https:")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else self._context()
        return httpx.AsyncClient(timeout=60, verify=context)

    def grpc_channel(self) -> grpc.aio.Channel:
        """Return a channel. Raises TargetError."""
        if self._unix_path:
            return grpc.aio.insecure_channel(f"unix:{quote(self._unix_path)}")
        where = urlsplit(self.url)
        if where.scheme != "grpcs":
            return grpc.aio.insecure_channel(where.netloc)
        self._context()  # says what is wrong with the files; grpcio would not
        own = (_bytes(self.private_key), _bytes(self.certificate))
        credentials = grpc.ssl_channel_credentials(_bytes(self.ca), *own)
        return grpc.aio.secure_channel(where.netloc, credentials)

    @property
    def _unix_path(self) -> str:
        return self.url.removeprefix("unix:") if self.url.startswith("unix:") else ""

    def _context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except OSError as error:
            problem = "not found" if isinstance(error, FileNotFoundError) else "not readable as PEM"
            raise TargetError(f"CA file {self.ca} {problem}; {whom_to_trust(self.ca)}") from error
        if self.certificate is not None:
            try:
                context.load_cert_chain(self.certificate, self.private_key)
            except OSError as error:
                message = f"{self.certificate} and {self.private_key} are no usable PEM pair"
                raise TargetError(f"{message}: {error.strerror}") from error
        return context


def whom_to_trust(ca: Path) -> str:
    """Return the hint for who trusts ``ca``, and not who answers."""
    return (
        f"--ca FILE names whom to trust, here {ca}: the certificate for development is"
        f" {CERTIFICATE} in the folder where the server was started"
    )


def _bytes(path: Path | None) -> bytes | None:
    return path.read_bytes() if path else None
