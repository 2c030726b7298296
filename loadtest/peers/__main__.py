"""``python -m loadtest.peers ARTIFACT``: servers from PyPI beside Narsil, as ratios.

Both serve the same artifact over HTTP/1.1 with the same bodies, on the same processor; the client
has the other ones. A peer's answers are compared with the golden scores before it is measured.
Within a round both take turns; a figure is the median of the rounds' ratios, ours by theirs.
"""

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from loadtest import bare, drive, workload
from loadtest.ask import ask_all
from loadtest.closed import NoServerError, RequestFailedError
from loadtest.command import machine
from loadtest.cpp_reference.serve import YardstickError
from loadtest.lab.tables import print_table
from loadtest.peers.catalogue import PEERS, Peer, PeerError, serving
from loadtest.peers.wording import PLAIN, Reworded
from loadtest.requests import Bodies, Golden, Order, write
from loadtest.rivals import narsil, pinned
from loadtest.wires.base import Target
from loadtest.wires.connect import connected
from loadtest.wires.http1 import Http1Wire
from loadtest.wires.kinds import KINDS, target
from scheduler.errors import LoadError

_REQUESTS, _VERIFIED, _TOLERANCE = 300, 100, 1e-5
_FIGURES = {"p50 ms": 1, "samples/s": 16}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure each peer and print a table; 2 if one could not be measured."""
    arguments = _arguments(argv)
    print(
        json.dumps({**machine(), "command": ["python -m loadtest.peers", *(argv or sys.argv[1:])]})
    )
    lines, code = [], 0
    for name in arguments.peer or PEERS:
        try:
            lines += measured(PEERS[name], arguments)
        except (PeerError, NoServerError, YardstickError, LoadError, OSError) as error:
            print(f"loadtest.peers: {error}", file=sys.stderr)
            code = 2
    if lines:
        print_table(lines)
    return code


def measured(peer: Peer, arguments: argparse.Namespace) -> list[dict[str, float | str]]:
    """Return the table's lines for ``peer``. Raises PeerError or NoServerError."""
    with TemporaryDirectory() as name, _both(peer, arguments, Path(name)) as sides:
        lines = []
        for figure, in_flight in _FIGURES.items():
            rounds = [
                [_figure(side, arguments, figure, in_flight) for side in sides]
                for _ in range(arguments.rounds)
            ]
            lines.append(_line(peer, figure, in_flight, rounds))
    return lines


@dataclass(frozen=True, slots=True)
class Side:
    """Where a server is asked, with what, and what is made of its answers."""

    target: Target
    bodies: Bodies
    told: Callable[[bytes], bytes]


@contextlib.contextmanager
def _both(peer: Peer, arguments: argparse.Namespace, folder: Path) -> Iterator[tuple[Side, Side]]:
    """Serve with the peer and with Narsil; yield both when they answer rightly."""
    shape = workload.read_shape(arguments.artifact)
    mix = workload.Mix(((arguments.rows, 1.0),))
    order = Order(mix, peer.encoding, shape.name, _REQUESTS, 1 << 28, 0)
    write(folder, shape, order, bare.load(arguments.artifact, "torch_dlrm"))
    bodies, words = Bodies(folder), Reworded(folder, peer.wording)
    golden = Golden(folder, peer.encoding, _TOLERANCE)
    cpus = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        with pinned(cpus[:1]):  # inherited by the servers
            flags = [f"--backend={arguments.backend}", "--server-drain-delay-s=0"]
            ours = stack.enter_context(narsil(arguments.artifact, flags, ("http",)))
            theirs = stack.enter_context(serving(peer, arguments.artifact, words[0]))
        stack.enter_context(pinned(cpus[1:] or cpus))
        sides = (
            Side(theirs, words, peer.wording.told),
            Side(target(KINDS[peer.wire], ours["http"], ""), bodies, PLAIN.told),
        )
        for side in sides:
            verify(peer, side, golden)
        yield sides


def verify(peer: Peer, side: Side, golden: Golden) -> None:
    """Compare answers with the golden scores. Raises PeerError."""
    sent = [side.bodies[number] for number in range(min(_VERIFIED, len(side.bodies)))]
    wire = Http1Wire(side.target)
    try:
        answers = [side.told(body) for body in ask_all(wire, sent)]
    except (RequestFailedError, ValueError) as error:
        raise PeerError(f"{peer.name}: {error}") from error
    finally:
        wire.close()
    wrong = sum(not golden.check(number, body) for number, body in enumerate(answers))
    if wrong:
        place = side.target.authority
        raise PeerError(f"{peer.name} at {place}: {wrong} of {len(sent)} answers wrong")


def _figure(side: Side, arguments: argparse.Namespace, figure: str, in_flight: int) -> float:
    plan = drive.Plan(side.bodies, arguments.warmup, arguments.seconds, in_flight=in_flight)
    with connected("http", side.target, in_flight) as wires:
        outcome = drive.run(wires, plan, time.perf_counter())
    if outcome.errors:
        raise PeerError(f"{side.target.authority}: {outcome.failures}")
    if figure == "p50 ms":
        return outcome.service.percentile(50) * 1e3
    return outcome.answered / outcome.elapsed_s * float(arguments.rows)


def _line(
    peer: Peer, figure: str, in_flight: int, rounds: Sequence[Sequence[float]]
) -> dict[str, float | str]:
    ratios = [ours / theirs for theirs, ours in rounds]
    theirs, ours = np.median(rounds, axis=0)
    return {
        "peer": peer.name,
        "body": peer.encoding,
        "figure": figure,
        "in flight": str(in_flight),
        "theirs": float(theirs),
        "ours": float(ours),
        "ours by theirs": f"{np.median(ratios):.2f}",
        "spread": f"{min(ratios):.2f} - {max(ratios):.2f}",
    }


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.peers")
    shown = "(default: %(default)s)"
    add = parser.add_argument
    add("artifact", type=Path, help="artifact folder that all serve")
    add("--peer", nargs="+", choices=PEERS, help="(default: all)")
    add("--backend", default="torch_dlrm", help=f"Narsil's {shown}")
    add("--rows", type=int, default=100, help=f"samples a request {shown}")
    add("--rounds", type=int, default=5, help=shown)
    add("--seconds", type=float, default=2.0, help=f"each measurement {shown}")
    add("--warmup", type=float, default=0.5, help=f"seconds before each {shown}")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
