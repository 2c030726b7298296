import asyncio
from typing import Any

import grpc
import pytest

from tests.fixtures.gates import make_request
from tests.fixtures.grpc_calls import Served, grpc_serving, status_of
from tests.fixtures.oip_grpc import OipClient, message_of
from tests.fixtures.requests import as_protobuf

StatusCode = grpc.StatusCode
TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE}-b7ad6b7169203331-01"
SERVICES = ["predictor", "inference"]


def ask(served: Served, service: str, **metadata: str) -> Any:
    """Send a request with ``metadata`` to one of the two services."""
    request, pairs = make_request(1), tuple(metadata.items())
    if service == "predictor":
        return served.client.predict_bytes(as_protobuf(request), metadata=pairs)
    message = message_of(request.inputs)
    return OipClient(served.client.channel).call("ModelInfer", message, metadata=pairs)


async def queued(served: Served, rows: int) -> None:
    while not served.observed.queued_rows or served.observed.queued_rows[-1] != rows:
        served.observed.changed.clear()
        await served.observed.changed.wait()


@pytest.mark.parametrize("service", SERVICES)
async def test_a_call_of_a_higher_class_is_served_first(service: str) -> None:
    async with grpc_serving() as served:
        held = await served.serving.occupy()
        low = ask(served, service, **{"priority": "3", "x-request-id": "low"})
        await queued(served, 1)
        high = ask(served, service, **{"priority": "0", "x-request-id": "high"})
        await queued(served, 2)
        held.finish()
        served.serving.gate.open()
        await asyncio.gather(low, high)
        assert served.serving.ran[1:] == [["high", "low"]]


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("text", ["-1", "1.5", "high", "", "9" * 5000])
async def test_a_priority_that_is_no_number_is_refused(service: str, text: str) -> None:
    async with grpc_serving() as served:
        error = await status_of(ask(served, service, priority=text))
        assert error.code() is StatusCode.INVALID_ARGUMENT
        assert (error.details() or "").startswith(
            "metadata priority: expected an integer of 0 or more, got "
        )


@pytest.mark.parametrize("service", SERVICES)
async def test_a_priority_outside_the_classes_is_refused(service: str) -> None:
    async with grpc_serving() as served:
        error = await status_of(ask(served, service, priority="4"))
        assert error.code() is StatusCode.INVALID_ARGUMENT
        assert error.details() == "priority: must be 0 to 3, got 4"


@pytest.mark.parametrize("service", SERVICES)
async def test_a_call_without_an_id_is_known_by_its_trace(service: str) -> None:
    async with grpc_serving() as served:
        served.serving.gate.open()
        await ask(served, service, traceparent=TRACEPARENT)
        assert (await served.observed.answer()).request_id == TRACE
        await ask(served, service, **{"traceparent": TRACEPARENT, "x-request-id": "mine"})
        assert (await served.observed.answer(1)).request_id == "mine"


@pytest.mark.parametrize("text", ["", "nonsense", f"00-{TRACE}", TRACEPARENT.upper()])
async def test_a_broken_traceparent_does_no_harm(text: str) -> None:
    async with grpc_serving() as served:
        served.serving.gate.open()
        await ask(served, "inference", traceparent=text)
        assert TRACE not in (await served.observed.answer()).request_id
