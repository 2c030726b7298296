"""What the probes say, on every transport, when a model loads, fails, dies or stops."""

import ast
import asyncio
import multiprocessing
import os
import threading
from pathlib import Path

import grpc.aio
import pytest

import scheduler
from backends.fake import FakeBackend, FakeOptions
from backends.torch_dlrm.gpu.faults import Fault, fault_of
from scheduler.engine import Engine
from scheduler.errors import Code, DeviceLostError
from scheduler.observer import Observer
from scheduler.options import SchedulerOptions
from scheduler.types import Batch
from tests.field_reports.asking import ask, code_of, request_of, right
from tests.field_reports.probes import NOT_SERVING, SERVING, Probes, listening, probes, said
from tests.fixtures.gates import Gate, Outputs, Watched, make_request, serving
from tests.fixtures.manual_clock import on_manual_clock, pass_time
from tests.fixtures.requests import as_protobuf
from tests.fixtures.serving import Served
from tests.fixtures.wires import connect

pytestmark = pytest.mark.timeout(30)
thread_may_die = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: device-side assert triggered",
        "CUDA error: an illegal memory access was encountered",
    ],
)
async def test_an_error_that_sticks_to_the_device_takes_readiness_and_liveness_off(
    served_fake: Served, fake: FakeBackend, message: str
) -> None:
    """Field report 29: Triton #3627 #5765 #7164, TorchServe #3114, ONNX Runtime backend #365."""

    def fail(batch: Batch) -> None:
        error = RuntimeError(message)
        raise DeviceLostError(message) if fault_of(error) is Fault.LOST else error

    async with probes(served_fake.urls, served_fake.ca) as seen:
        assert await seen.say() == said(startup=True, ready=True, live=True)
        fake.before_run = fail
        async with connect("http-json", served_fake) as wire:
            asked = await asyncio.gather(*(ask(wire, served_fake, rows) for rows in (2, 3, 4)))
            assert {code for answer in asked for code in answer.codes} <= {
                Code.INTERNAL, Code.UNAVAILABLE,
            }  # fmt: skip
            assert all(answer.codes for answer in asked)
            assert await seen.say() == said(startup=True, ready=False, live=False)
            assert (await ask(wire, served_fake, rows=5)).codes == {Code.UNAVAILABLE}


async def test_an_error_that_does_not_stick_leaves_the_model_ready(
    served_fake: Served, fake: FakeBackend
) -> None:
    """Field report 29: Triton #5765. Running out of memory fails one batch, not the device."""

    def fail(batch: Batch) -> None:
        error = RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        raise DeviceLostError(str(error)) if fault_of(error) is Fault.LOST else error

    healthy, fake.before_run = fake.before_run, fail
    async with (
        probes(served_fake.urls, served_fake.ca) as seen,
        connect("http-json", served_fake) as wire,
    ):
        assert (await ask(wire, served_fake, rows=2)).codes == {Code.INTERNAL}
        assert await seen.say() == said(startup=True, ready=True, live=True)
        fake.before_run = healthy
        following = await ask(wire, served_fake, rows=3)
        assert right(following, fake, request_of(served_fake, 3))


@thread_may_die
async def test_a_dead_compute_thread_is_seen_by_every_probe_and_everybody_is_answered(
    served_fake: Served, fake: FakeBackend, gate: Gate
) -> None:
    """Field report 30: MLServer #707 #1431."""
    async with probes(served_fake.urls, served_fake.ca) as seen:
        async with connect("grpc", served_fake) as wire:
            first = ask(wire, served_fake, rows=1)
            run = await gate.began()
            waiting = ask(wire, served_fake, rows=2)
            await served_fake.recorder.until(lambda: served_fake.recorder.queued_rows == 2)
            run.fail(SystemExit())
            for answer in await asyncio.gather(first, waiting):
                assert answer.codes == {Code.INTERNAL}
        assert await seen.say() == said(startup=True, ready=False, live=False)


@on_manual_clock
async def test_a_compute_thread_that_hangs_counts_as_dead() -> None:
    """Field report 30: MLServer #1431. A run longer than the watchdog allows is no heartbeat."""
    async with serving(options=SchedulerOptions(watchdog_s=30.0)) as server:
        run = await server.occupy()
        waiting = await server.asked(make_request(1, 1))
        states: list[tuple[bool, bool]] = []
        server.engine.watch(lambda: states.append((server.engine.ready, server.engine.live)))
        await pass_time(29.0)
        assert states == []
        await pass_time(1.0)
        assert states == [(False, False)]
        assert await code_of(waiting) is Code.INTERNAL
        run.finish()


async def test_startup_readiness_and_liveness_are_told_apart_while_a_model_loads_and_drains(
    certificates: Path,
) -> None:
    """Field report 32: Triton #7014 #7588 #5438."""
    engine, backend = Engine(SchedulerOptions(), Observer()), Watched()
    backend.held.clear()
    async with listening(engine, certificates) as (urls, ca), probes(urls, ca) as seen:
        loading = asyncio.create_task(engine.load(backend))
        await backend.until("load")
        assert await seen.say() == said(startup=False, ready=False, live=True)
        assert await refusal_of_predict(seen) == grpc.StatusCode.UNAVAILABLE
        backend.held.set()
        await loading
        assert await seen.say() == said(startup=False, ready=False, live=True)
        engine.open()
        assert await seen.say() == said(startup=True, ready=True, live=True)
        assert await seen.grpc.check("fake") == SERVING
        assert await refusal_of_predict(seen) is None
        engine.drain()
        assert await seen.say() == said(startup=True, ready=False, live=True)
        assert await seen.grpc.check("fake") == NOT_SERVING
        assert await refusal_of_predict(seen) is None  # not ready, and serving on


async def refusal_of_predict(seen: Probes) -> grpc.StatusCode | None:
    """Return the status with which one request of the fake model is refused."""
    try:
        await seen.grpc.predict_bytes(as_protobuf(make_request(2, 1)))
    except grpc.aio.AioRpcError as error:
        return error.code()
    return None


@pytest.mark.parametrize("lanes", [1, 4])
async def test_lanes_are_threads_of_this_process_and_no_worker_is_forked(lanes: int) -> None:
    """Field report 34: LitServe #321, PyTorch #68861 #40403.

    A process that has used CUDA cannot fork. We never do: one process, a thread for each lane.
    """
    places: set[tuple[int, bool, str]] = set()

    class Seen(FakeBackend):
        def run(self, batch: Batch) -> Outputs:
            thread = threading.current_thread()
            main = thread is threading.main_thread()
            places.add((os.getpid(), main, thread.name.rpartition("-")[0]))
            return super().run(batch)

    async with serving(Seen(FakeOptions(lanes=lanes))) as server:
        runs = []
        for seed in range(lanes):
            server.ask(make_request(1, seed))
            runs.append(await server.gate.began())
        assert places == {(os.getpid(), False, "fake-lane")}
        assert multiprocessing.active_children() == []
        for run in runs:
            run.finish()


FORKING = {"multiprocessing", "subprocess", "concurrent.futures.process"}


def test_nothing_on_the_serving_path_could_start_a_process() -> None:
    """Field report 34: PyTorch #40403. No module imports what forks or spawns.

    But those that start a new program while a model is loaded and not yet served, or made, or code
    is compiled; and the program that carriers of the collective transport are forked from, which
    does nothing else.
    """
    root = Path(scheduler.__file__ or "").parent.parent
    backends = root / "backends"
    loading = {
        backends / "torch_dlrm" / "bounded.py",
        backends / "torch_dlrm" / "train" / "movielens" / "download.py",
        backends / "native_dlrm" / "compiler.py",
        backends / "compiled" / "build.py",
        root / "app" / "compiled" / "build.py",
        root / "transports" / "collective" / "nursery.py",
    }
    for folder in ("app", "backends", "scheduler", "transports"):
        for path in set((root / folder).rglob("*.py")) - loading:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    assert not FORKING & {name.name for name in node.names}, path
                elif isinstance(node, ast.ImportFrom):
                    assert node.module not in FORKING, path
                elif isinstance(node, ast.Attribute):
                    assert node.attr not in ("fork", "ProcessPoolExecutor"), path
