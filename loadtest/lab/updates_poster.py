"""Who sends deltas in the lab, who takes them and does nothing, and whose turn it is."""

import http.client
import itertools
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

from loadtest.lab.updates_rounds import FOLDER, Rounds

# What of a delta's name differs from one to the next.
NAME = "narsil-lab-%08d"
_TYPE = "application/vnd.apache.arrow.stream"
# As the server takes a delta: no more at once, and no more a second. Nor is more sent at once: what
# a process does in the kernel nobody interrupts.
_PIECE_BYTES = 64 * 1024
_MOST_LATE_S = 0.02
_SPREAD = (
    0.618  # its multiples, without their whole parts, are spread evenly however many there are
)
_BYTES_PER_S = 64 * 1024 * 1024


def go_first() -> None:
    """Let nobody else on the machine keep this process from a CPU (needs root)."""
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def give_way() -> None:
    """Let the server go first, at once: this process is another machine's.

    At nice 19 others would wait for the end of its time slice, 3 ms. Where the server goes before
    everybody else on the machine, this process goes before what is left.
    """
    if os.sched_getscheduler(0) == os.SCHED_RR:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    else:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def post(
    rounds: Rounds,
    urls: Mapping[str, str],
    folder: Path,
    bodies: Sequence[bytes],
    every_s: float,
) -> None:
    """Send ``bodies`` in turn to whoever's turn it is, each under a new name; for ever.

    That is to a URL, or into ``folder``.
    """
    give_way()
    places = [(bytearray(body), body.index((NAME % 0).encode())) for body in bodies]
    sends: dict[str, Callable[[bytearray, str], None]] = {
        turn: _Poster(url).send for turn, url in urls.items()
    }
    sends[FOLDER] = partial(_put, folder)
    due_s = time.monotonic()
    for number in itertools.count(1):
        due_s = rounds.next_turn(max(due_s + every_s, time.monotonic() - every_s))
        # Requests come evenly, too: each delta is to meet them at another point of theirs.
        late_s = _MOST_LATE_S * (number * _SPREAD % 1)
        time.sleep(max(0.0, due_s + late_s - time.monotonic()))
        body, at = places[number % len(places)]
        name = NAME % number
        body[at : at + len(name)] = name.encode()
        sends[rounds.turn_at(due_s)](body, name)


class _Poster:
    """Post to one URL, over one connection."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._path = parts.path
        self._connection = http.client.HTTPConnection(parts.netloc)
        self._connection.connect()
        sock: socket.socket = self._connection.sock
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _PIECE_BYTES)

    def send(self, body: bytearray, name: str) -> None:
        """Post ``body`` and wait for the answer."""
        del name
        head = {"content-type": _TYPE, "content-length": str(len(body))}
        self._connection.request("POST", self._path, _pieces(body), head)
        answer = self._connection.getresponse()
        if answer.status != HTTPStatus.OK:
            raise RuntimeError(f"a delta was refused: {answer.read()!r}")
        answer.read()


def _pieces(body: bytearray) -> Iterator[memoryview]:
    for start in range(0, len(body), _PIECE_BYTES):
        yield memoryview(body)[start : start + _PIECE_BYTES]


def _put(folder: Path, body: bytearray, name: str) -> None:
    beside = folder / f".{name}"
    with beside.open("wb", buffering=0) as file:
        for piece in _pieces(body):
            file.write(piece)
    beside.rename(folder / f"{name}.arrow")


def sink(listener: socket.socket) -> None:
    """Take what is posted, as fast as the server would, and throw it away; for ever."""
    give_way()
    listener.listen()
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _PIECE_BYTES)
        with connection:
            while length := _length(connection.recv(_PIECE_BYTES)):
                _take(connection, length)
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")


def _length(head: bytes) -> int:
    """Return how much follows a request's first bytes; 0 at the end."""
    head, _, began = head.partition(b"\r\n\r\n")
    fields = [line.partition(b":") for line in head.lower().split(b"\r\n")]
    lengths = [int(value) for name, _, value in fields if name == b"content-length"]
    return lengths[0] - len(began) if lengths else 0


def _take(connection: socket.socket, length: int) -> None:
    room, taken, began_s = bytearray(_PIECE_BYTES), 0, time.monotonic()
    while taken < length:
        got = connection.recv_into(room, min(_PIECE_BYTES, length - taken))
        if not got:
            return
        taken += got
        time.sleep(max(0.0, taken / _BYTES_PER_S - (time.monotonic() - began_s)))
