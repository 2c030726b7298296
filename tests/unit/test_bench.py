"""The load generator: it sends what it says, and counts what comes back."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.fake import FakeBackend
from loadtest import drive, workload
from loadtest.ask import ask_all
from loadtest.closed import NoServerError
from loadtest.encodings import decode, encode
from loadtest.record import Outcome
from loadtest.requests import Golden, Order, write
from loadtest.wires.base import Target
from loadtest.wires.connect import connected
from loadtest.wires.kinds import KINDS, Kind, target
from loadtest.workload import Mix
from scheduler.types import Batch, InferRequest
from tests.fixtures.serving import Served, serving

SHAPE = workload.ModelShape(3, ("cat_0", "cat_1"), (1000, 1000), "fake")
WIRES = ["grpc", "oip-grpc", "http", "http-json", "http3"]


@dataclass(frozen=True, slots=True)
class Bench:
    """A served fake and what drives it."""

    served: Served
    backend: FakeBackend

    async def drive(
        self, wire: str, plan: drive.Plan, connections: int = 3, model: str = ""
    ) -> Outcome:
        """Carry out ``plan`` over ``wire`` beside the server's loop."""
        kind = KINDS[wire]
        transport = {"grpc": "grpc", "http": "http", "https": "http3"}[kind.scheme]
        url = self.served.urls[transport].replace("https://127.0.0.1", "https://localhost")
        named = model or (SHAPE.name if kind.names_model else "")
        place = target(kind, url, str(self.served.ca), model=named)

        def run() -> Outcome:
            with connected(kind.scheme, place, connections) as wires:
                return drive.run(wires, plan, time.perf_counter())

        return await asyncio.to_thread(run)


@asynccontextmanager
async def bench(certificates: Path) -> AsyncIterator[Bench]:
    backend = FakeBackend(FakeBackend.Options())
    async with serving(backend, certificates) as served:
        yield Bench(served, backend)


def short(bodies: list[bytes], **more: Any) -> drive.Plan:
    return drive.Plan(bodies, warmup_s=0.0, measure_s=0.1, **more)


def bodies(wire: str, count: int = 10) -> list[bytes]:
    made = workload.draws(SHAPE, Mix(((2, 1.0),)), count, seed=1)
    encoding = KINDS[wire].encoding
    return [encode(encoding, SHAPE.name, SHAPE.features, inputs) for _, inputs in made]


@pytest.mark.parametrize("wire", WIRES)
async def test_a_closed_loop_counts_every_answer(wire: str, certificates: Path) -> None:
    async with bench(certificates) as on:
        outcome = await on.drive(wire, short(bodies(wire), in_flight=3))
        computed = sum(len(batch.requests) for batch in on.backend.batches)
    assert outcome.failures.first == ""
    assert outcome.answered == computed > 0
    assert max(len(batch.requests) for batch in on.backend.batches) <= 3


async def test_the_open_inference_protocol_over_http_gives_the_scores(certificates: Path) -> None:
    (made,) = workload.draws(SHAPE, Mix(((3, 1.0),)), 1, seed=2)
    async with bench(certificates) as on:
        right = on.backend.score(InferRequest("", 3, made[1]))
        for wire in ("oip-http", "oip-http-json", "oip-http3", "oip-http3-json"):
            kind = KINDS[wire]
            body = encode(kind.encoding, SHAPE.name, SHAPE.features, made[1])
            url = on.served.urls["http" if kind.scheme == "http" else "http3"]
            place = target(
                kind, url.replace("https://127.0.0.1", "https://localhost"), str(on.served.ca),
                model=SHAPE.name,
            )  # fmt: skip

            def ask(kind: Kind = kind, place: Target = place, body: bytes = body) -> bytes:
                with connected(kind.scheme, place, 1) as (wire,):
                    return ask_all(wire, [body])[0]

            (scores,) = decode(kind.encoding, await asyncio.to_thread(ask)).values()
            assert np.array_equal(scores, right), wire


def test_json_that_outgrows_its_place_is_an_error() -> None:
    inputs = {f"input_{number}": np.zeros(1, np.float32) for number in range(100)}
    with pytest.raises(ValueError, match="the JSON of the inputs is over 2048 bytes"):
        encode("oip-binary", "", (), inputs)


@pytest.mark.parametrize("wire", WIRES)
async def test_an_open_loop_sends_all_that_it_was_to_send(wire: str, certificates: Path) -> None:
    due_s = np.linspace(0.0, 0.09, 30)
    async with bench(certificates) as on:
        outcome = await on.drive(wire, short(bodies(wire), due_s=due_s))
    assert (outcome.offered, outcome.answered, outcome.errors) == (30, 30, 0)
    assert outcome.lag.total == outcome.service.total == 30
    assert sum(window.total for window in outcome.windows) <= 30


async def test_what_was_due_in_the_warm_up_is_forgotten(certificates: Path) -> None:
    due_s = np.array([0.0, 0.01, 0.06, 0.07, 0.08])
    plan = drive.Plan(bodies("http"), warmup_s=0.05, measure_s=0.05, due_s=due_s)
    async with bench(certificates) as on:
        outcome = await on.drive("http", plan)
    assert (outcome.offered, outcome.answered) == (3, 3)


@pytest.mark.parametrize("wire", ["grpc", "http", "http3"])
async def test_a_stall_of_the_server_counts_from_the_intended_send(
    wire: str, certificates: Path
) -> None:
    due_s = np.linspace(0.0, 0.1, 11)
    async with bench(certificates) as on:
        stalls = iter([0.3])
        on.backend.before_run = lambda batch: time.sleep(next(stalls, 0.0))
        plan = short(bodies(wire), due_s=due_s)
        outcome = await on.drive(wire, plan, connections=1)
    assert outcome.answered == 11
    # All but the first were to be sent during the stall, and none of that wait is forgiven.
    assert outcome.response.percentile(10) >= 0.15
    if wire == "http":
        # They were only sent when the one connection was free again, which is no lag of ours.
        assert outcome.service.percentile(50) < outcome.response.percentile(50)


@pytest.mark.parametrize("wire", ["grpc", "http", "http3"])
async def test_errors_are_counted_by_code_beside_the_latencies(
    wire: str, certificates: Path
) -> None:
    async with bench(certificates) as on:

        def fail(batch: Batch) -> None:
            raise RuntimeError("no")

        on.backend.before_run = fail
        outcome = await on.drive(wire, short(bodies(wire), in_flight=2))
    assert outcome.answered == 0
    assert outcome.failures.counts == {"INTERNAL" if wire == "grpc" else "500": outcome.errors}
    assert outcome.errors > 0


@pytest.mark.parametrize(
    ("wire", "status"), [("grpc", "INVALID_ARGUMENT"), ("http", "400"), ("http3", "400")]
)
async def test_the_first_failure_is_quoted(wire: str, status: str, certificates: Path) -> None:
    async with bench(certificates) as on:
        outcome = await on.drive(wire, short([b"\xff"], in_flight=2))
    said = outcome.failures.first
    assert said.startswith(f"{status}: body is not a predictor.PredictionRequest")
    assert said in str(outcome.failures)


@pytest.mark.parametrize("wire", ["grpc", "http", "http-json", "http3"])
async def test_a_model_is_asked_for_by_its_name(wire: str, certificates: Path) -> None:
    async with bench(certificates) as on:
        found = await on.drive(wire, short(bodies(wire), in_flight=2), model="fake")
        missed = await on.drive(wire, short(bodies(wire), in_flight=2), model="other")
    assert (found.errors, found.answered > 0) == (0, True)
    assert (missed.answered, missed.errors > 0) == (0, True)
    assert "no model 'other'" in missed.failures.first


@pytest.mark.parametrize("wire", WIRES)
async def test_every_answer_is_checked(wire: str, certificates: Path, tmp_path: Path) -> None:
    encoding = KINDS[wire].encoding
    order = Order(Mix(((2, 1.0),)), encoding, "fake", 10, 1 << 20, seed=1)
    write(tmp_path, SHAPE, order, FakeBackend(FakeBackend.Options()))
    check = Golden(tmp_path, encoding, 1e-5).check
    sent = bodies(wire)
    async with bench(certificates) as on:
        right = await on.drive(wire, short(sent, in_flight=3, check=check))
        crossed = sent[1:] + sent[:1]
        wrong = await on.drive(wire, short(crossed, in_flight=3, check=check))
    assert right.answered > 0
    assert right.mismatches == 0
    assert wrong.mismatches == wrong.answered > 0


async def test_what_is_never_answered_fails_when_the_time_is_over(certificates: Path) -> None:
    async with bench(certificates) as on:
        on.backend.before_run = lambda batch: time.sleep(0.3)
        plan = drive.Plan(bodies("grpc"), 0.0, 0.05, np.array([0.0]), drain_s=0.01)
        outcome = await on.drive("grpc", plan)
    assert (outcome.answered, outcome.unanswered) == (0, 1)
    assert outcome.failures.counts == {drive.UNANSWERED: 1}


@pytest.mark.parametrize("wire", ["grpc", "http", "http3"])
async def test_a_connection_lost_in_the_run_ends_it(wire: str, certificates: Path) -> None:
    async with bench(certificates) as on:
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def begin(batch: Batch) -> None:
            loop.call_soon_threadsafe(begun.set)

        on.backend.before_run = begin
        plan = drive.Plan(bodies(wire), 0.0, 60.0, in_flight=2)
        run = asyncio.create_task(on.drive(wire, plan))
        await begun.wait()
    with pytest.raises(NoServerError, match="connection lost"):
        await run


def test_a_missing_ca_is_named(tmp_path: Path) -> None:
    place = target(KINDS["http3"], "https://localhost:1", str(tmp_path / "gone.pem"))
    with pytest.raises(NoServerError, match="not found"), connected("https", place, 1):
        pass


@pytest.mark.parametrize("wire", ["grpc", "http", "http3"])
async def test_what_is_given_up_is_neither_answered_nor_failed(
    wire: str, certificates: Path
) -> None:
    due_s = np.linspace(0.0, 0.05, 10)
    async with bench(certificates) as on:
        on.backend.before_run = lambda batch: time.sleep(0.05)
        plan = short(bodies(wire), due_s=due_s, cancel_every=5, cancel_after_s=0.0)
        outcome = await on.drive(wire, plan, connections=10)
    assert (outcome.cancelled, outcome.answered, outcome.errors) == (2, 8, 0)
