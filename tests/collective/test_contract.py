"""The collective transport behaves as gRPC does, as far as its shape allows."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import grpc.aio
import numpy as np
import pytest
import pytest_asyncio

from app.tracing.attributes import of_request
from scheduler.errors import Code, ServingError
from scheduler.threads import run_in_thread
from scheduler.types import InferRequest, ModelSpec
from tests.collective.serving import Met
from tests.contract.behaviours import BEHAVIOURS, Behaviour
from tests.contract.every_wire import Asker, Outcome, PredictorAsker
from tests.fixtures.gates import make_request
from transports.collective.client import CollectiveClient
from transports.grpc.server import GrpcTransport

pytestmark = pytest.mark.asyncio(loop_scope="package")

# Those of bytes are of a wire's own format; this one's are in test_messages.py.
_OF_BYTES = {"bytes of no format", "a body above the limit"}
_ALIKE = [behaviour for behaviour in BEHAVIOURS if behaviour.name not in _OF_BYTES]


class CollectiveAsker(Asker):
    """The client on a thread of its own."""

    def __init__(self, spec: ModelSpec, client: CollectiveClient) -> None:
        super().__init__(spec)
        self._client = client

    async def ask(self, request: InferRequest, model: str = "") -> Outcome:
        try:
            scores = await run_in_thread(
                lambda: self._client.predict(request.inputs, model=model), "asker"
            )
        except ServingError as error:
            return Outcome(b"", frozenset({error.code}), error.code.value, error.detail)
        return Outcome(scores["default"].numpy().tobytes())


@dataclass(frozen=True)
class Both:
    """One server, asked both ways."""

    met: Met
    client: CollectiveClient
    collective: Asker
    grpc: Asker


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def both(met: Met) -> AsyncIterator[Both]:
    """The server behind gRPC, too."""
    other = GrpcTransport(GrpcTransport.Options(port=0))
    (url,) = await other.start(met.engine)
    spec = met.engine.spec("")
    client = await run_in_thread(lambda: CollectiveClient(met.url), "connecting")
    async with grpc.aio.insecure_channel(urlsplit(url).netloc) as channel:
        yield Both(met, client, CollectiveAsker(spec, client), PredictorAsker(spec, channel))
    client.close()
    await other.stop(0.2)


@pytest.mark.parametrize("behaviour", _ALIKE, ids=lambda behaviour: behaviour.name)
async def test_it_answers_as_grpc_does(behaviour: Behaviour, both: Both) -> None:
    ours = await behaviour.ask(both.collective, both.met.backend)
    theirs = await behaviour.ask(both.grpc, both.met.backend)
    assert ours.scores == theirs.scores
    assert ours.codes <= theirs.codes
    assert ours.codes == (frozenset() if behaviour.code is None else {behaviour.code})
    if behaviour.same_words:
        assert ours.detail == theirs.detail


async def test_a_deadline_that_passes_is_answered_as_one_and_the_connection_serves_on(
    both: Both,
) -> None:
    gate = both.met.hold()
    request = make_request(2)
    with pytest.raises(ServingError) as refused:
        await run_in_thread(lambda: both.client.predict(request.inputs, timeout_s=0.2), "late")
    assert refused.value.code is Code.DEADLINE_EXCEEDED
    gate.open()
    scores = await run_in_thread(lambda: both.client.predict(request.inputs), "after")
    assert np.array_equal(scores["default"], both.met.backend.score(request))


async def test_a_cancelled_request_is_answered_so_and_its_neighbour_has_its_scores(
    both: Both,
) -> None:
    gate = both.met.hold()
    occupying = asyncio.create_task(both.met.engine.infer(make_request(1)))
    await gate.began()
    asked, request = make_request(2, seed=1), make_request(3, seed=2)
    asking = run_in_thread(lambda: both.client.predict(asked.inputs), "asker")
    await both.met.recorder.until(lambda: both.met.recorder.queued_rows == 2)
    neighbour = asyncio.create_task(both.met.engine.infer(request))
    both.client.cancel()
    with pytest.raises(ServingError) as cancelled:
        await asking
    gate.open()
    assert cancelled.value.code is Code.CANCELLED
    await occupying
    assert np.array_equal((await neighbour).outputs["default"], both.met.backend.score(request))
    ran = [one.id for batch in both.met.backend.batches for one in batch.requests]
    assert both.met.recorder.answers[-1].request_id not in ran


async def test_the_observer_hears_of_each_request(both: Both) -> None:
    request = make_request(7, seed=9)
    await run_in_thread(lambda: both.client.predict(request.inputs, model="fake"), "asker")
    await both.met.recorder.until(lambda: both.met.recorder.answers[-1].rows == 7)
    record = both.met.recorder.answers[-1]
    assert (record.transport, record.model, record.version) == ("collective", "fake", "1")
    assert (record.code, record.bytes_out > 0, record.timing is not None) == (None, True, True)
    span = of_request(record)
    assert (span["narsil.transport"], span["narsil.rows"]) == ("collective", 7)
    assert not any(name.startswith(("http.", "rpc.", "network.")) for name in span)
