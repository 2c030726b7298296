"""A gRPC client far cheaper than any server: one blocking socket, libnghttp2, no event loop.

grpcio's own client costs several times what a fast server does, and then it is the client that is
measured.
"""

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import ngh2
import numpy as np

from loadtest.closed import Failures, NoServerError, RequestFailedError, Result

# What may arrive at once; many answers.
_READ_BYTES = 256 * 1024
_WINDOW_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Load:
    """Keep ``in_flight`` requests of ``bodies`` under way; measure after the warm-up."""

    bodies: Sequence[bytes]
    in_flight: int
    warmup_s: float
    measure_s: float
    path: str = "/predictor.Predictor/Predict"


@dataclass(slots=True)
class _Tally:
    begin_s: float
    latencies_s: list[float] = field(default_factory=list)
    failures: Failures = field(default_factory=Failures)


def run(host: str, port: int, load: Load) -> Result:
    """Drive one connection, closed loop. Raises NoServerError."""
    try:
        with socket.create_connection((host, port), timeout=30.0) as connected:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return _Client(connected, load).run()
    except OSError as error:
        raise NoServerError(f"{host}:{port}: {error}") from error


class _Client:
    def __init__(self, connected: socket.socket, load: Load) -> None:
        self._socket = connected
        self._load = load
        # The prefix of a message that is not compressed, once and for all.
        self._frames = [b"\0" + len(body).to_bytes(4, "big") + body for body in load.bodies]
        self._next = 0
        self._sent_s: dict[int, float] = {}
        self._statuses: dict[int, tuple[str, str]] = {}
        self._h2 = ngh2.Connection(ngh2.Role.CLIENT)
        self._h2.initiate_connection({ngh2.Setting.INITIAL_WINDOW_SIZE: _WINDOW_BYTES})
        self._h2.set_local_window_size(_WINDOW_BYTES)
        host, port = connected.getpeername()[:2]
        self._head = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", load.path.encode()),
            (b":authority", f"{host}:{port}".encode()),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        ]

    def run(self) -> Result:
        now_s = time.perf_counter()
        tally = _Tally(now_s + self._load.warmup_s)
        end_s = tally.begin_s + self._load.measure_s
        for _ in range(self._load.in_flight):
            self._ask(now_s)
        while self._sent_s:
            self._socket.sendall(self._h2.data_to_send())
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise NoServerError("the server closed the connection")
            self._h2.receive_data(data)
            now_s = time.perf_counter()
            for event in self._h2.events():
                if self._over(event, now_s, tally) and now_s < end_s:
                    self._ask(now_s)
        return Result(np.array(tally.latencies_s), now_s - tally.begin_s, tally.failures)

    def _ask(self, now_s: float) -> None:
        stream_id = self._h2.send_request(self._head)
        frame = self._frames[self._next % len(self._frames)]
        self._h2.send_data(stream_id, frame, end_stream=True)
        self._next += 1
        self._sent_s[stream_id] = now_s

    def _over(self, event: ngh2.Event, now_s: float, tally: _Tally) -> bool:
        """Take in ``event``; return whether a call ended with it."""
        if isinstance(event, ngh2.ResponseReceived | ngh2.TrailersReceived):
            fields = dict(event.headers)
            if b"grpc-status" in fields:
                status = fields[b"grpc-status"].decode()
                message = fields.get(b"grpc-message", b"").decode()
                self._statuses[event.stream_id] = (status, message)
            return False
        if not isinstance(event, ngh2.StreamClosed):
            return False
        latency_s = now_s - self._sent_s.pop(event.stream_id)
        status, message = self._statuses.pop(event.stream_id, ("none", "the stream was reset"))
        if status != "0":
            tally.failures.add(RequestFailedError(status, message))
        elif now_s >= tally.begin_s:
            tally.latencies_s.append(latency_s)
        return True
