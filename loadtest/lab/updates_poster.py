"""Who sends deltas in the lab, who takes them and does nothing, and whose turn it is."""

import http.client
import itertools
import os
import socket
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

# A turn is as long as that; then it is the next one's.
TURN_S = 0.5
NOTHING, SINK, UPDATES = "nothing", "sink", "updates"
TURNS = (NOTHING, UPDATES, SINK)
# What of a delta's name differs from one to the next.
NAME = "narsil-lab-%08d"
_TYPE = "application/vnd.apache.arrow.stream"
# As the server takes a delta: no more at once, and no more a second.
_PIECE_BYTES = 64 * 1024
_BYTES_PER_S = 64 * 1024 * 1024


def turn_at(at_s: float) -> str:
    """Return whose turn it is at that time, on the clock that all processes share."""
    return TURNS[int(at_s / TURN_S) % len(TURNS)]


def round_at(at_s: float) -> int:
    """Return which round that time is in: every turn once."""
    return int(at_s / TURN_S) // len(TURNS)


def give_way() -> None:
    """Let everybody else on the machine go first, at once: this process is another machine's.

    At nice 19 others would wait for the end of its time slice, 3 ms.
    """
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def post(urls: dict[str, str], bodies: Sequence[bytes], every_s: float) -> None:
    """Post ``bodies`` in turn to whoever's turn it is, each under a new name; for ever."""
    give_way()
    places = [(bytearray(body), body.index((NAME % 0).encode())) for body in bodies]
    connections = {
        turn: http.client.HTTPConnection(urlsplit(url).netloc) for turn, url in urls.items()
    }
    due_s = time.monotonic()
    for number in itertools.count(1):
        due_s = _next_turn(max(due_s + every_s, time.monotonic() - every_s), set(urls))
        time.sleep(max(0.0, due_s - time.monotonic()))
        turn, (body, at) = turn_at(due_s), places[number % len(places)]
        name = (NAME % number).encode()
        body[at : at + len(name)] = name
        path = urlsplit(urls[turn]).path
        connections[turn].request("POST", path, body, {"content-type": _TYPE})
        connections[turn].getresponse().read()


def _next_turn(due_s: float, turns: set[str]) -> float:
    while turn_at(due_s) not in turns:
        due_s = (int(due_s / TURN_S) + 1) * TURN_S
    return due_s


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
