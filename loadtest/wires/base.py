"""What the load loop needs of a client's connection, and the part of it that TCP shares."""

import contextlib
import math
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from loadtest.closed import NoServerError
from loadtest.wires.tls import WAIT, encrypted, reason

CONNECT_TIMEOUT_S = 10.0
_READ_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go, and what every one of them says beside its body.

    ``read_bytes`` at most are read from a TCP connection at a time; with ``tls`` it is encrypted,
    and the certificate signed by one in the file ``ca``.
    """

    host: str
    port: int
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    ca: str = ""
    read_bytes: int = _READ_BYTES
    tls: bool = False

    @property
    def authority(self) -> str:
        """Return host and port as HTTP writes them."""
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of the request with ``ticket``; ``status`` is empty if it succeeded."""

    ticket: int
    status: str
    detail: str
    body: bytes


class Wire(Protocol):
    """One connection. Every method may raise NoServerError; none waits."""

    @property
    def due_s(self) -> float:
        """Return when to call ``receive`` even if nothing has arrived (perf_counter)."""

    def fileno(self) -> int:
        """Return the socket's number, for epoll."""

    @property
    def free(self) -> bool:
        """Say whether another request may be asked now."""

    @property
    def blocked(self) -> bool:
        """Say whether something waits until the socket takes more."""

    def ask(self, ticket: int, body: bytes) -> None:
        """Begin a request; ``flush`` sends it."""

    def cancel(self, ticket: int) -> None:
        """Give up a request: no answer comes. The socket may be another one then."""

    def flush(self) -> None:
        """Send what is to be sent, as far as the socket takes it."""

    def receive(self) -> list[Answer]:
        """Read once what has arrived; return the answers that it completes."""

    def close(self) -> None:
        """Close at once."""


class TcpWire(ABC):
    """A TCP connection that never waits once it is open."""

    due_s = math.inf
    # What it is called where the protocol is agreed on in TLS.
    alpn: ClassVar[str]

    def __init__(self, target: Target) -> None:
        self._target = target
        self._connect()

    def _connect(self) -> None:
        target = self._target
        try:
            plain = socket.create_connection((target.host, target.port), timeout=CONNECT_TIMEOUT_S)
        except OSError as error:
            raise NoServerError(reason(error)) from error
        self._socket: socket.socket | ssl.SSLSocket = plain
        if target.tls:
            self._socket = encrypted(plain, target.host, target.ca, self.alpn)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if target.read_bytes < _READ_BYTES:  # nor may the kernel read ahead, as far as it lets us
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, target.read_bytes)
        self._socket.setblocking(False)
        self._rest: bytes | memoryview = b""

    @abstractmethod
    def _to_send(self) -> bytes:
        """Return what the protocol wants to send; it is gone then."""

    @abstractmethod
    def _received(self, data: bytes) -> list[Answer]:
        """Take in what has arrived."""

    def fileno(self) -> int:
        """Return the socket's number."""
        return self._socket.fileno()

    @property
    def blocked(self) -> bool:
        """Say whether the socket took less than there was."""
        return len(self._rest) > 0

    def flush(self) -> None:
        """Send until there is no more, or the socket takes no more."""
        try:
            while data := self._rest or self._to_send():
                self._rest = memoryview(data)[self._socket.send(data) :]
        except (BlockingIOError, *WAIT):
            self._rest = data
        except OSError as error:
            raise NoServerError(f"connection lost: {reason(error)}") from error

    def receive(self) -> list[Answer]:
        """Read once; return the answers that are now complete."""
        try:
            data = self._socket.recv(self._target.read_bytes)
        except (BlockingIOError, *WAIT):
            return []
        except OSError as error:
            raise NoServerError(f"connection lost: {reason(error)}") from error
        if not data:
            raise NoServerError("connection lost: the server closed it")
        return self._received(data)

    def close(self) -> None:
        """Close the socket."""
        with contextlib.suppress(OSError):
            self._socket.close()
