"""What a request asks for beside its scores is its own, whoever shares its batch."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import orjson
import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.options import SchedulerOptions
from scheduler.types import Batch, ModelSpec
from tests.field_reports.asking import queued
from tests.fixtures.gates import Gate, Outputs
from tests.fixtures.requests import as_document, random_request
from tests.fixtures.serving import Served, serving
from transports.http3.client import Http3Client

pytestmark = pytest.mark.timeout(30)


class TwoOutputs(FakeBackend):
    """A fake with a second output: the first one, negated."""

    @property
    def spec(self) -> ModelSpec:
        """The fake's, with the second output."""
        spec = super().spec
        return replace(spec, outputs=(*spec.outputs, replace(spec.outputs[0], name="negated")))

    def run(self, batch: Batch) -> Outputs:
        """Score ``batch``."""
        scores = super().run(batch)["default"]
        return {"default": scores, "negated": np.negative(np.asarray(scores, np.float32))}


@dataclass(frozen=True)
class Reply:
    """One answer in JSON."""

    headers: Mapping[str, str]
    predictions: dict[str, Any]


async def ask(
    transport: str, served: Served, rows: int, outputs: list[str], name: str
) -> asyncio.Task[Reply]:
    """Ask for ``outputs`` of ``rows`` rows in a request called ``name``."""
    spec = served.engine.spec("")
    document = as_document(random_request(spec, rows, seed=rows), spec) | {"outputs": outputs}
    headers = {"content-type": "application/json", "x-request-id": name}
    post = _post_http3 if transport == "http3" else _post_http
    return asyncio.create_task(post(served, orjson.dumps(document), headers))


async def _post_http(served: Served, body: bytes, headers: dict[str, str]) -> Reply:
    async with httpx.AsyncClient(base_url=served.urls["http"], timeout=30) as client:
        answer = await client.post("/v1/predict", content=body, headers=headers)
    return Reply(answer.headers, answer.json()["predictions"])


async def _post_http3(served: Served, body: bytes, headers: dict[str, str]) -> Reply:
    port = urlsplit(served.urls["http3"]).port or 0
    async with Http3Client.connect("localhost", port, served.ca) as client:
        answer = await client.post("/v1/predict", body, headers)
    return Reply(answer.headers, orjson.loads(answer.body)["predictions"])


@pytest.mark.parametrize("transport", ["http", "http3"])
async def test_requests_of_one_batch_keep_their_own_choice_of_outputs_and_their_own_id(
    transport: str, certificates: Path
) -> None:
    """Field report 6: MLServer #514 #312 #1541."""
    backend = TwoOutputs(FakeOptions())
    backend.before_run = gate = Gate()
    async with serving(backend, certificates, SchedulerOptions(inline_below_s=0.0)) as served:
        first = await ask(transport, served, 1, [], "everything")
        run = await gate.began()
        one = await ask(transport, served, 2, ["default"], "one")
        other = await ask(transport, served, 3, ["negated"], "other")
        await queued(served, rows=5)
        run.finish()
        shared = await gate.began()
        assert sorted(request.id for request in shared.batch.requests) == ["one", "other"]
        gate.open()
        assert set((await first).predictions) == {"default", "negated"}
        for reply, name, output, rows in (
            (await one, "one", "default", 2), (await other, "other", "negated", 3),
        ):  # fmt: skip
            assert reply.headers["x-request-id"] == name
            assert set(reply.predictions) == {output}
            scores = backend.score(random_request(backend.spec, rows, seed=rows))
            expected = np.abs(np.asarray(scores, np.float32))
            assert np.array_equal(np.abs(np.float32(reply.predictions[output])), expected)
