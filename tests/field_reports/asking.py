"""Ask over any wire, and look at what came of it."""

import asyncio

import numpy as np

from backends.fake import FakeBackend
from scheduler.errors import Code, ServingError
from scheduler.types import InferRequest, InferResponse
from tests.contract.conftest import encode
from tests.fixtures.requests import random_request
from tests.fixtures.serving import Served
from tests.fixtures.wires import Answer, Wire


def request_of(served: Served, rows: int) -> InferRequest:
    """Return a request of ``rows`` rows, which is also its seed."""
    return random_request(served.engine.spec(""), rows, seed=rows)


def ask(
    wire: Wire, served: Served, rows: int, timeout_s: float | None = None
) -> asyncio.Task[Answer]:
    """Send the request of ``rows`` rows."""
    body = encode(wire, request_of(served, rows), served)

    async def send() -> Answer:
        return await wire.send(body, timeout_s=timeout_s)

    return asyncio.create_task(send())


async def queued(served: Served, rows: int) -> None:
    """Wait until exactly ``rows`` rows wait for a lane."""
    await served.recorder.until(lambda: served.recorder.queued_rows == rows)


async def cancelled(served: Served, count: int) -> None:
    """Wait until ``count`` requests have ended because their clients left."""
    answers = served.recorder.answers
    await served.recorder.until(
        lambda: sum(answer.code is Code.CANCELLED for answer in answers) == count
    )


def right(answer: Answer, fake: FakeBackend, request: InferRequest) -> bool:
    """Return whether ``answer`` is the scores of ``request``, bit for bit."""
    return not answer.codes and np.array_equal(answer.scores["default"], fake.score(request))


def rows_run(fake: FakeBackend) -> list[int]:
    """Return the rows of each request that reached the backend, in order."""
    return [request.rows for batch in fake.batches for request in batch.requests]


async def code_of(answer: asyncio.Task[InferResponse]) -> Code | None:
    """Return the code that ``answer`` failed with, None if it is scores."""
    try:
        await answer
    except ServingError as error:
        return error.code
    return None
