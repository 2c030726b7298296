"""Ask a server of collective tensors: needs PyTorch and NumPy, and nothing of the server's.

with CollectiveClient("127.0.0.1:50061") as client:
    scores = client.predict({"float_features": dense, ...})["default"]
"""

import itertools
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import urlsplit

import torch

from scheduler.errors import Code, ServingError
from transports.collective.framing import Decoder, encode
from transports.collective.layout import places
from transports.collective.messages import (
    Answer,
    Ask,
    Cancel,
    Failure,
    Hello,
    Message,
    Proceed,
    Ready,
    Rendezvous,
    Welcome,
)
from transports.collective.packing import Input, heads_of, packed, tensor_of, unpacked
from transports.collective.pair import CALLER, Pair, PairOptions
from transports.collective.rendezvous import RelayedStore

T = TypeVar("T")

_READ_BYTES = 1 << 16
# How much longer than the deadline the server may take to say that it has passed.
_LATE_S = 5.0


@dataclass(frozen=True, slots=True)
class Extras:
    """What a request may say besides: which outputs (none: all), its class, its id, its key.

    ``traceparent`` is that of its trace (W3C).
    """

    outputs: tuple[str, ...] = ()
    priority: int = 0
    request_id: str = ""
    key: str = ""
    traceparent: str = ""


_NO_EXTRAS = Extras()


class CollectiveClient:
    """One connection: one request at a time, whichever thread asks; more want more clients.

    ``address`` is HOST:PORT, or the URL that the server shows. ``device`` is where the tensors
    are if the server speaks NCCL. Errors are ServingErrors, with the server's code and words.
    """

    def __init__(
        self,
        address: str,
        *,
        device: str = "cuda:0",
        api_key: str = "",
        connect_timeout_s: float = 30.0,
        transfer_timeout_s: float = 30.0,
    ) -> None:
        self._device = device
        self._transfer_timeout_s = transfer_timeout_s
        self._decoder = Decoder()
        self._come: deque[Message] = deque()
        self._numbers = itertools.count(1)
        self._asking = threading.Lock()
        self._sending = threading.Lock()
        self._under_way = 0
        self._socket = _connected(address, connect_timeout_s)
        try:
            self._pair = self._met(api_key, connect_timeout_s)
        except (OSError, RuntimeError) as error:
            self._socket.close()
            raise ServingError(Code.UNAVAILABLE, f"not connected: {error}") from error
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def predict(
        self,
        inputs: Mapping[str, Input],
        *,
        model: str = "",
        version: str = "",
        timeout_s: float | None = None,
        extras: Extras = _NO_EXTRAS,
    ) -> dict[str, torch.Tensor]:
        """Return the scores by output, on the device; ``timeout_s`` None waits for ever.

        Raises ServingError.
        """
        tensors = {name: tensor_of(name, value) for name, value in inputs.items()}
        with self._asking:
            number = next(self._numbers)
            ask = Ask(
                number, heads_of(tensors), model, version, extras.request_id, extras.key,
                extras.outputs, extras.priority, timeout_s, extras.traceparent,
            )  # fmt: skip
            message = packed(number, ask.tensors, tensors, self._pair.device)
            try:
                return self._answer(ask, message)
            except TimeoutError as error:
                self.close()
                detail = "the deadline passed, and the server did not say so"
                raise ServingError(Code.DEADLINE_EXCEEDED, detail) from error
            except (OSError, RuntimeError) as error:
                self.close()
                raise ServingError(Code.UNAVAILABLE, f"the connection broke: {error}") from error
            finally:
                self._under_way = 0

    def cancel(self) -> None:
        """Give up the request that another thread waits for; it is answered CANCELLED."""
        with self._sending:
            if self._under_way:
                self._socket.sendall(encode(Cancel(self._under_way)))

    def close(self) -> None:
        """Let go of the server."""
        self._socket.close()
        self._pair.close()

    def _answer(self, ask: Ask, message: torch.Tensor) -> dict[str, torch.Tensor]:
        with self._sending:
            self._socket.sendall(encode(ask))
            self._under_way = ask.number
        until_s = None if ask.timeout_s is None else time.monotonic() + ask.timeout_s + _LATE_S
        self._expect(Proceed, until_s)
        self._pair.send(message)
        answer = self._expect(Answer, until_s)
        scores = torch.empty(places(answer.tensors)[1], dtype=torch.uint8, device=self._pair.device)
        self._pair.receive(scores)
        return unpacked(answer.tensors, scores)

    def _met(self, api_key: str, timeout_s: float) -> Pair:
        """Meet the server's carrier. Raises ServingError, OSError."""
        until_s = time.monotonic() + timeout_s
        self._socket.sendall(encode(Hello(api_key)))
        backend = self._expect(Welcome, until_s).backend
        device = "cpu" if backend == "gloo" else self._device
        # The carrier is where the control channel leads: over the same interface.
        address = self._socket.getsockname()[0]
        options = PairOptions(backend, CALLER, address, device, self._transfer_timeout_s)
        store = RelayedStore(
            lambda key, value: self._socket.sendall(encode(Rendezvous(key, value))), timeout_s
        )
        met: list[Pair] = []
        meeting = threading.Thread(target=lambda: met.append(Pair(options, store)), daemon=True)
        meeting.start()
        while not isinstance(message := self._next(until_s), Ready):
            if isinstance(message, Rendezvous):
                store.put(message.key, message.value)
        meeting.join(timeout_s)
        if not met:
            raise TimeoutError("the server's process was not met")
        store.close()
        return met[0]

    def _expect(self, kind: type[T], until_s: float | None) -> T:
        """Return the next message, which is to be of ``kind``. Raises ServingError, OSError."""
        message = self._next(until_s)
        if not isinstance(message, kind):
            raise OSError(f"the server sent {type(message).__name__}")
        return message

    def _next(self, until_s: float | None) -> Message:
        while not self._come:
            self._socket.settimeout(
                None if until_s is None else max(0.001, until_s - time.monotonic())
            )
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise ConnectionError("the server has closed it")
            self._come.extend(self._decoder.feed(data))
        message = self._come.popleft()
        if isinstance(message, Failure):
            raise ServingError(Code(message.code), message.detail, message.retry_after_s)
        return message


def _connected(address: str, timeout_s: float) -> socket.socket:
    """Return a connection to HOST:PORT or a URL. Raises ServingError (UNAVAILABLE)."""
    parts = urlsplit(address if "//" in address else f"//{address}")
    try:
        connection = socket.create_connection((parts.hostname or "", parts.port or 0), timeout_s)
    except OSError as error:
        raise ServingError(Code.UNAVAILABLE, f"cannot connect to {address}: {error}") from error
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection
