"""What transports get from an engine in another process is what they get from one in their own."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import numpy as np
import pytest

from scheduler.errors import Code, ServingError
from scheduler.observer import Answered
from scheduler.types import Array, InferRequest
from tests.fixtures.far_engine import SLOT_BYTES, Far, Held, far, until
from tests.fixtures.gates import make_request

ROWS = (1, 2, 7, 64, 130, 0)


@pytest.fixture
async def both() -> AsyncIterator[Far]:
    """An engine and a front end's."""
    async with far() as both:
        yield both


@pytest.fixture
async def held(both: Far) -> AsyncIterator[Held]:
    """Hold every run of the model."""
    both.backend.before_run = held = Held()
    yield held
    held.opened.set()


async def slots_free(both: Far) -> None:
    """Wait until every slot is free again, at both ends."""
    await until(lambda: not both.remote.slot_bytes and not both.session.slots)


@pytest.mark.parametrize("rows", ROWS)
async def test_scores_are_the_engine_s_own_and_the_slot_is_free_again(both: Far, rows: int) -> None:
    request = make_request(rows, seed=rows) if rows else _of_no_rows()
    theirs, ours = await both.engine.infer(request), await both.remote.infer(request)
    np.testing.assert_array_equal(ours.outputs["default"], theirs.outputs["default"])
    assert (ours.model, ours.version) == (theirs.model, theirs.version)
    del theirs, ours
    await slots_free(both)


def _of_no_rows() -> InferRequest:
    whole = make_request(1)
    inputs: Mapping[str, Array] = {
        "float_features": np.zeros((0, 3), np.float32),
        "id_list_features.lengths": np.zeros((2, 0), np.int64),
        "id_list_features.values": np.zeros(0, np.int64),
    }
    return replace(whole, rows=0, inputs=inputs)


BAD = {
    "no such model": replace(make_request(1), model="nothing"),
    "no such version": replace(make_request(1), version="9"),
    "no such output": replace(make_request(1), outputs=("nothing",)),
    "no such priority": replace(make_request(1), priority=4),
    "a priority beyond any integer": replace(make_request(1), priority=2**70),
    "no time": replace(make_request(1), timeout_s=0.0),
    "too many rows": replace(make_request(1), rows=20_000),
    "an input missing": replace(make_request(1), inputs={}),
    "texts": replace(make_request(1), inputs={"float_features": np.array(["a"])}),
    "an id out of range": replace(
        make_request(1),
        inputs={
            "float_features": np.zeros((1, 3), np.float32),
            "id_list_features.lengths": np.ones((2, 1), np.int64),
            "id_list_features.values": np.array([1, 5000]),
        },
    ),
}


@pytest.mark.parametrize("name", BAD)
async def test_what_is_refused_is_refused_in_the_engine_s_own_words(both: Far, name: str) -> None:
    theirs, ours = [await _refusal(one.infer(BAD[name])) for one in (both.engine, both.remote)]
    assert (ours.code, ours.detail) == (theirs.code, theirs.detail)
    assert (ours.retry_after_s, ours.version) == (theirs.retry_after_s, theirs.version)
    del ours, theirs
    await slots_free(both)


async def _refusal(answer: object) -> ServingError:
    with pytest.raises(ServingError) as caught:
        await answer  # type: ignore[misc]  # whatever can be awaited
    caught.value.__traceback__ = None  # it holds the request
    return caught.value


async def test_a_deadline_that_passes_in_the_engine_s_queue_is_the_client_s_own(
    both: Far, held: Held
) -> None:
    first = asyncio.create_task(both.remote.infer(make_request(1)))
    await held.begun.wait()
    late = await _refusal(both.remote.infer(replace(make_request(2), timeout_s=0.05)))
    assert late.code is Code.DEADLINE_EXCEEDED
    assert late.detail == "not answered within 50 ms (timeout)"
    held.opened.set()
    await first


async def test_a_client_that_leaves_leaves_the_engine_s_queue(both: Far, held: Held) -> None:
    first = asyncio.create_task(both.remote.infer(make_request(1)))
    await held.begun.wait()
    leaver = asyncio.create_task(both.remote.infer(make_request(5)))
    await both.recorder.until(lambda: both.recorder.queued_rows == 5)
    leaver.cancel()
    await both.recorder.until(lambda: both.recorder.queued_rows == 0)
    held.opened.set()
    await first
    await slots_free(both)


async def test_a_slot_is_not_given_to_others_while_a_batch_still_reads_it(
    both: Far, held: Held
) -> None:
    leaver = asyncio.create_task(both.remote.infer(make_request(1)))
    await held.begun.wait()
    leaver.cancel()
    await until(lambda: not both.session.requests)
    assert both.remote.slot_bytes > 0
    held.opened.set()
    await slots_free(both)


async def test_when_no_slot_is_free_a_request_is_refused_and_names_the_limit(
    both: Far, held: Held
) -> None:
    waiting = [asyncio.create_task(both.remote.infer(make_request(1))) for _ in range(16)]
    await held.begun.wait()
    refusal = await _refusal(both.remote.infer(make_request(1)))
    assert refusal.code is Code.OVERLOADED
    assert f"more than {SLOT_BYTES} bytes (frontend_slot_bytes)" in refusal.detail
    assert refusal.retry_after_s
    held.opened.set()
    assert len(await asyncio.gather(*waiting)) == 16
    await slots_free(both)
    await both.remote.infer(make_request(1))


async def test_what_never_fits_is_too_large_not_overload(both: Far) -> None:
    request = make_request(1)
    values = np.zeros(SLOT_BYTES, np.int64)
    refusal = await _refusal(
        both.remote.infer(
            replace(request, inputs={**request.inputs, "id_list_features.values": values})
        )
    )
    assert refusal.code is Code.PAYLOAD_TOO_LARGE
    await slots_free(both)


async def test_when_the_engine_is_lost_everybody_who_waits_hears_of_it(
    both: Far, held: Held
) -> None:
    waiting = asyncio.create_task(both.remote.infer(make_request(1)))
    await held.begun.wait()
    both.to_front_end.close()
    assert (await _refusal(waiting)).code is Code.UNAVAILABLE
    assert (await _refusal(both.remote.infer(make_request(1)))).code is Code.UNAVAILABLE
    assert (both.remote.ready, both.remote.live) == (False, False)


async def test_when_the_front_end_is_lost_what_it_asked_for_is_cancelled(
    both: Far, held: Held
) -> None:
    first = asyncio.create_task(both.remote.infer(make_request(1)))
    await held.begun.wait()
    second = asyncio.create_task(both.remote.infer(make_request(5)))
    await both.recorder.until(lambda: both.recorder.queued_rows == 5)
    both.to_engine.close()
    both.remote.lost()
    await both.recorder.until(lambda: both.recorder.queued_rows == 0)
    assert both.lost == ["it has gone"]
    assert both.session.slots > 0, "the batch that runs still reads its slot"
    held.opened.set()
    for task in (first, second):
        assert (await _refusal(task)).code is Code.UNAVAILABLE
    await until(lambda: not both.session.slots)


async def test_a_front_end_knows_what_its_engine_serves(both: Far) -> None:
    (theirs,), (ours,) = both.engine.specs(), both.remote.specs()
    assert ours == theirs
    assert both.remote.spec("") == both.remote.spec("fake", "1") == theirs
    for model, version in (("nothing", ""), ("fake", "9"), ("nothing", "1")):
        with pytest.raises(ServingError) as said:
            both.engine.spec(model, version)
        with pytest.raises(ServingError, match=_whole(said.value)):
            both.remote.spec(model, version)


def _whole(error: ServingError) -> str:
    return f"^{error.detail}$"


async def test_readiness_is_off_in_front_ends_once_the_engine_drains(both: Far) -> None:
    changed = asyncio.Event()
    both.remote.watch(changed.set)
    both.engine.drain()
    await changed.wait()
    assert (both.remote.ready, both.remote.draining, both.remote.live) == (False, True, True)
    await both.remote.infer(make_request(1))


async def test_the_engine_s_observer_hears_of_every_answer(both: Far) -> None:
    record = Answered(
        "http", "fake", 3, Code.OVERLOADED, 0.5, "id\ud800", "full", "1", "", None, "POST /", "1.1",
        429, 10, 20,
    )  # fmt: skip
    both.remote.observer.answered(record)
    await both.recorder.until(lambda: bool(both.recorder.answers))
    (heard,) = both.recorder.answers
    assert heard == replace(record, request_id="id?")


async def test_metrics_are_asked_of_the_engine(both: Far) -> None:
    body, content_type = await both.remote.observer.scraped("text/plain")
    assert (body, content_type) == both.recorder.exposition("text/plain")
