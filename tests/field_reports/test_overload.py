"""More than can be done: refused at once and by name, and what is let in is answered in time."""

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import grpc.aio
import httpx
import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.errors import Code
from scheduler.options import SchedulerOptions
from tests.contract.conftest import encode
from tests.field_reports.asking import ask, queued, request_of
from tests.field_reports.conftest import TRANSPORTS
from tests.field_reports.overload import Cost, Load, Simulation
from tests.fixtures.gates import Gate, Recorder, make_request, serving
from tests.fixtures.grpc_calls import status_of
from tests.fixtures.manual_clock import on_manual_clock, settle
from tests.fixtures.requests import as_protobuf
from tests.fixtures.serving import Served
from tests.fixtures.serving import serving as serving_on_wires
from tests.fixtures.wires import Wire, connect
from transports.status import STATUS

pytestmark = pytest.mark.timeout(60)


async def test_time_that_ran_out_a_full_queue_and_a_draining_server_are_told_apart(
    served_fake: Served, wire: Wire, gate: Gate
) -> None:
    """Field report 24: Triton #5348 #7369."""
    first = ask(wire, served_fake, rows=1)
    await gate.began()
    late = await ask(wire, served_fake, rows=2, timeout_s=0.005)
    assert late.codes == {Code.DEADLINE_EXCEEDED}
    gate.open()
    await first
    await served_fake.engine.close(grace_s=1.0)
    assert (await ask(wire, served_fake, rows=2)).codes == {Code.UNAVAILABLE}


@pytest.mark.parametrize("name", TRANSPORTS)
async def test_a_full_queue_says_so_and_nothing_about_time(
    name: str, fake: FakeBackend, gate: Gate, certificates: Path
) -> None:
    """Field reports 24 and 25: Triton #5348 #6368, Ray #42950."""
    options = SchedulerOptions(max_queue_rows=64, inline_below_s=0.0)
    async with (
        serving_on_wires(fake, certificates, options) as served,
        connect(name, served) as wire,
    ):
        first = ask(wire, served, rows=1)
        await gate.began()
        waiting = ask(wire, served, rows=60)
        await queued(served, rows=60)
        refused = await ask(wire, served, rows=5, timeout_s=30.0)
        assert Code.OVERLOADED in refused.codes
        assert "max_queue_rows" in refused.detail
        gate.open()
        for answer in await asyncio.gather(first, waiting):
            assert not answer.codes


def test_time_full_and_draining_have_the_statuses_that_load_balancers_know() -> None:
    """Field report 24: Triton #5348 #7369."""
    status = grpc.StatusCode
    assert STATUS[Code.DEADLINE_EXCEEDED][:2] == (status.DEADLINE_EXCEEDED, 504)
    assert STATUS[Code.OVERLOADED][:2] == (status.RESOURCE_EXHAUSTED, 429)
    assert STATUS[Code.UNAVAILABLE][:2] == (status.UNAVAILABLE, 503)


async def test_the_clients_own_grpc_deadline_is_the_deadline_and_the_request_never_runs(
    served_fake: Served, fake: FakeBackend, gate: Gate
) -> None:
    """Field report 24: Triton #7369, two kinds of timeout."""
    target = urlsplit(served_fake.urls["grpc"]).netloc
    async with grpc.aio.insecure_channel(target) as channel:
        predict = channel.unary_unary("/predictor.Predictor/Predict")
        first = asyncio.ensure_future(predict(as_protobuf(request_of(served_fake, 1))))
        await gate.began()
        error = await status_of(predict(as_protobuf(request_of(served_fake, 2)), timeout=0.005))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        gate.open()
        await first
    assert [batch.rows for batch in fake.batches] == [1]


@pytest.mark.parametrize("header", ["x-request-timeout-ms", "body"])
async def test_the_clients_own_http_timeout_is_the_deadline_wherever_it_stands(
    served_fake: Served, fake: FakeBackend, gate: Gate, header: str
) -> None:
    """Field report 24: Triton #7369."""
    async with (
        connect("http-json", served_fake) as wire,
        httpx.AsyncClient(base_url=served_fake.urls["http"], timeout=30) as client,
    ):
        first = ask(wire, served_fake, rows=1)
        await gate.began()
        body = encode(wire, request_of(served_fake, 2), served_fake)
        headers = {"content-type": "application/json"}
        if header == "body":
            body = body[:-1] + b',"timeout_ms":5}'
        else:
            headers[header] = "5"
        answer = await client.post("/v1/predict", content=body, headers=headers)
        assert answer.status_code == 504
        assert "timeout" in answer.json()["error"]
        gate.open()
        await first
    assert [batch.rows for batch in fake.batches] == [1]


@pytest.mark.parametrize("mode", ["batch", "worker"])
@on_manual_clock
async def test_what_waits_is_bounded_with_and_without_batching(mode: str) -> None:
    """Field report 25: Ray #42950 #22670 #34280, Triton #6368."""
    options = SchedulerOptions(mode=mode, max_queue_rows=100)
    backend, recorder = FakeBackend(FakeOptions(max_batch_rows=64)), Recorder()
    async with serving(backend, options, recorder) as server:
        run = await server.occupy()
        asked = [server.ask(make_request(1, seed)) for seed in range(300)]
        await settle()
        assert recorder.queued_rows[-1] <= 100
        assert recorder.drops == ["queue_full"] * sum(task.done() for task in asked)
        assert recorder.drops
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        server.gate.open()
        run.finish()


GPU = Cost(overhead_s=1e-3, row_s=0.2e-6)
CPU = Cost(overhead_s=0.15e-3, row_s=25e-6)
BETWEEN = Cost(overhead_s=1e-3, row_s=5e-6)
NOISY = Cost(overhead_s=0.15e-3, row_s=25e-6, noise=0.1)
MIXED = (1, 10, 100, 200)

LOADS = {
    "like a GPU, 20 ms": (GPU, Load(0.02, sizes=(256,), duration_s=0.3)),
    "like a GPU, 50 ms": (GPU, Load(0.05, sizes=(256,), duration_s=0.3)),
    "like a CPU, 20 ms": (CPU, Load(0.02)),
    "like a CPU, 50 ms": (CPU, Load(0.05)),
    "like a CPU, 200 ms": (CPU, Load(0.2, duration_s=2.0)),
    "like a CPU, 50 ms, small requests": (CPU, Load(0.05, sizes=(20,), duration_s=0.5)),
    "like a CPU, 50 ms, mixed sizes": (CPU, Load(0.05, sizes=MIXED)),
    "like a CPU, 50 ms, bursts": (CPU, Load(0.05, burst=5)),
    "like a CPU, 50 ms, times vary": (NOISY, Load(0.05)),
    "in between, 20 ms": (BETWEEN, Load(0.02, duration_s=0.5)),
    "in between, 50 ms, mixed sizes": (BETWEEN, Load(0.05, sizes=MIXED, duration_s=0.5)),
}


@pytest.mark.parametrize(("cost", "load"), LOADS.values(), ids=LOADS)
@on_manual_clock
async def test_at_three_times_capacity_90_percent_of_it_is_answered_and_99_percent_in_time(
    cost: Cost, load: Load
) -> None:
    """Field report 25: Ray #42950 #22670 #34280, Triton #6368."""
    simulation = Simulation(cost, load)
    await simulation.run()
    assert simulation.goodput >= 0.9
    assert simulation.tally.late_share <= 0.01
    assert simulation.tally.refused.total() > 0.3 * simulation.tally.answered.total()


CLASSES = {
    "like a GPU, 20 ms": (GPU, Load(0.02, sizes=(256,), priorities=(0, 1), duration_s=0.3)),
    "like a CPU, 50 ms": (CPU, Load(0.05, priorities=(0, 1), duration_s=2.0)),
}


@pytest.mark.parametrize(("cost", "load"), CLASSES.values(), ids=CLASSES)
@on_manual_clock
async def test_at_three_times_capacity_the_higher_class_is_answered_in_time(
    cost: Cost, load: Load
) -> None:
    """Field report 25: Ray #34280. What is late is of the lower class, which is served last."""
    simulation = Simulation(cost, load)
    await simulation.run()
    tally = simulation.tally
    assert simulation.goodput >= 0.9
    assert tally.late[0] <= 0.01 * tally.answered[0]
    assert tally.answered[0] > tally.answered[1]
