"""A real server process: what it was told is what it does, and SIGTERM loses nobody's answer."""

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from scheduler.types import ModelSpec
from tests.e2e.clients import served_by, until
from tests.e2e.process import narsil_serve
from tests.field_reports.conftest import SERVED_TRANSPORTS
from tests.fixtures.raw_http import RawConnection, raw
from tests.fixtures.requests import as_json, as_protobuf, random_request
from tests.fixtures.serving import Served
from tests.fixtures.wires import Answer, connect

pytestmark = pytest.mark.timeout(60)

GET_READY = b"GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n"


async def test_the_settings_on_the_command_line_are_those_the_model_says_it_runs_with(
    tmp_path: Path,
) -> None:
    """Field report 18: KServe #1666."""
    arguments = ["--backend=fake", "--scheduler-max-batch-ids=777", "--scheduler-max-delay-s=0.003"]
    with narsil_serve(tmp_path, arguments, transports=("http",)) as process:
        async with httpx.AsyncClient(base_url=process.urls["http"], timeout=60) as client:
            seen = (await client.get("/v1/models/fake")).json()["properties"]
    assert seen["scheduler.max_batch_ids"] == "777"
    assert seen["scheduler.max_delay_s"] == "0.003"
    assert seen["scheduler.max_queue_rows"] == "65536"


async def ask_until(
    served: Served, spec: ModelSpec, name: str, stop: asyncio.Event
) -> list[Answer]:
    """Send requests one after another until told to stop."""
    answers: list[Answer] = []
    async with connect(name, served) as wire:
        while not stop.is_set():
            request = random_request(spec, rows=2, seed=len(answers))
            body = as_json(request, spec) if wire.json else as_protobuf(request)
            answers.append(await wire.send(body))
    return answers


async def is_unready(connection: RawConnection) -> bool:
    await connection.send(GET_READY)
    return (await connection.answer()).status == 503


async def is_refused(url: str) -> bool:
    """Return whether nothing accepts connections at ``url`` any more."""
    target = urlsplit(url)
    try:
        _, writer = await asyncio.open_connection(target.hostname, target.port)
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


async def test_sigterm_first_turns_readiness_off_then_refuses_connections_and_fails_no_request(
    tmp_path: Path,
) -> None:
    """Field report 31: Triton #6230 #6286 #6939, Kubernetes #43576 #20473 #114250."""
    arguments = ["--backend=fake", "--backend-compute-s=0.002", "--server-drain-delay-s=1"]
    with narsil_serve(tmp_path, arguments) as process:
        served, spec = served_by(process.urls, tmp_path), None
        stop = asyncio.Event()
        spec = served.backend.spec
        async with asyncio.TaskGroup() as group, raw(process.urls["http"]) as kept:
            loads = [
                group.create_task(ask_until(served, spec, name, stop)) for name in SERVED_TRANSPORTS
            ]
            assert not await is_unready(kept)
            process.terminate()
            await until(lambda: is_unready(kept))
            # Not ready, and a newcomer is served all the same: the balancer may not know yet.
            await ask_once(served, spec)
            stop.set()
            # What is kept alive is closed, so that no client waits for an answer on it.
            assert await kept.closed()
            await until(lambda: is_refused(process.urls["http"]))
        code, log = await asyncio.to_thread(process.wait)
    assert code == 0, log
    for load in loads:
        assert load.result()
        assert not any(answer.codes for answer in load.result())


async def ask_once(served: Served, spec: ModelSpec) -> None:
    """Ask over a new connection of every transport; each must answer."""
    for name in SERVED_TRANSPORTS:
        async with connect(name, served) as wire:
            request = random_request(spec, rows=1, seed=0)
            body = as_json(request, spec) if wire.json else as_protobuf(request)
            assert not (await wire.send(body)).codes
