"""What compares the wires' servers: figures where the right figure is known, and that it runs."""

import time
from pathlib import Path

import pytest

from loadtest.calibrate import null_server
from loadtest.drive import Plan
from loadtest.drive import run as drive
from loadtest.lab import http3_memory
from loadtest.lab.wire_cost import Cost, measure, serving, table
from loadtest.lab.wire_servers import SHAPE
from loadtest.null_server import ANSWER
from loadtest.wires.base import Target
from loadtest.wires.connect import connected
from loadtest.wires.kinds import KINDS
from loadtest.workload import make_bodies


def test_costs_are_compared_within_each_round() -> None:
    rounds = {
        "least": [Cost(100.0, 1.0, 10.0, 5.0), Cost(10.0, 1.0, 100.0, 5.0)],
        "ours": [Cost(50.0, 2.0, 30.0, 5.0), Cost(5.0, 2.0, 300.0, 5.0)],
    }
    first, second = table(1, 16, rounds)
    assert (first["x rate"], first["x cpu"]) == (1.0, 1.0)
    assert (second["x rate"], second["x cpu"]) == (0.5, 3.0)


@pytest.mark.parametrize(("step_mib", "flat"), [(0.0, "yes"), (0.001, "yes"), (1.0, "no")])
def test_memory_that_rises_with_the_streams_is_not_flat(step_mib: float, flat: str) -> None:
    samples = [(1000 * number, 100 + step_mib * number) for number in range(1, 50)]
    assert http3_memory.figures(samples)["flat"] == flat


@pytest.mark.slow
@pytest.mark.parametrize("name", ["http3-plain", "http-least"])
def test_every_contestant_answers(name: str, tmp_path: Path) -> None:
    kind = KINDS["http3" if name.startswith("http3") else "http"]
    bodies = make_bodies(SHAPE, 2, 4, 0, kind.encoding)
    with serving(name, kind, tmp_path) as server:
        cost = measure(kind.scheme, server, Plan(bodies, 0.0, 0.1, in_flight=2))
    assert cost.rate > 0


def test_the_null_server_of_http3_answers_more_streams_than_one_connection_may_have_open(
    tmp_path: Path,
) -> None:
    kind = KINDS["http3"]
    bodies = make_bodies(SHAPE, 1, 4, 0, kind.encoding)
    seen: list[bytes] = []

    def check(number: int, body: bytes) -> bool:
        del number
        seen.append(body)
        return True

    with null_server("https", tmp_path) as port:
        place = Target("localhost", port, kind.path, {}, str(tmp_path / "certificate.pem"))
        with connected("https", place, 1) as wires:
            plan = Plan(bodies, 0.0, 0.3, in_flight=300, check=check)
            outcome = drive(wires, plan, time.perf_counter())
    assert not outcome.errors
    assert set(seen) == {ANSWER}
