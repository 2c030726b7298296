"""What must hold once a schedule has ended: each request's fate, each row's runs, the sums."""

import math
from collections import defaultdict

import numpy as np

from scheduler.errors import Code
from tests.simulation.backend import SimulatedBackend
from tests.simulation.checks import threads_of
from tests.simulation.journal import Journal, Run
from tests.simulation.traffic import FAULTS, Asked, fault_of


def check_end(journal: Journal) -> None:
    """Check everything that ever happened."""
    for asked in journal.asked:
        assert asked.task.done(), f"{asked} has no answer"
        if not math.isinf(asked.asked_s):
            check_runs(journal, asked)
            check_answer(journal, asked)
    check_order(journal)
    check_sums(journal)
    check_left_over(journal)


def check_answer(journal: Journal, asked: Asked) -> None:
    """Check that ``asked`` had an answer it may have."""
    if asked.task.cancelled():
        assert asked.cancelled_at < math.inf, f"{asked} was cancelled by nobody"
        return
    assert asked.cancelled_at == math.inf, f"{asked} was answered though cancelled"
    code = asked.code
    if code is None:
        check_scores(journal, asked)
    else:
        assert is_allowed(journal, asked, code), f"{asked}: {asked.error!r}"


def is_allowed(journal: Journal, asked: Asked, code: Code) -> bool:
    """Return whether the schedule explains the error ``code``."""
    dead_at = min(
        (journal.deaths.get(one, math.inf) for one in journal.backends(asked)), default=math.inf
    )
    dead = dead_at < asked.answered_at
    match code:
        case Code.MODEL_NOT_FOUND:
            allowed = asked.target is None and not asked.waited
        case Code.INVALID_REQUEST:
            allowed = not asked.sound and not asked.waited
        case Code.PAYLOAD_TOO_LARGE:
            allowed = asked.request.size_bytes > journal.options.max_queue_bytes
        case Code.OVERLOADED:
            allowed = not asked.waited and may_be_refused(journal, asked)
        case Code.DEADLINE_EXCEEDED:
            passed = asked.deadline_s <= asked.answered_s
            allowed = passed or (asked.forecast and asked.deadline_s < math.inf)
        case Code.UNAVAILABLE if asked.waited:
            allowed = journal.cuts_off_s_of(asked.target) <= asked.answered_s
        case Code.UNAVAILABLE:
            allowed = dead or asked.asked_s >= journal.close_s
        case _:
            began = any(row in journal.runs for row in asked.rows)
            allowed = dead or (began and FAULTS.get(fault_of(asked.request)) is code)
    return allowed


def may_be_refused(journal: Journal, asked: Asked) -> bool:
    """Return whether there was reason to call the queue full, or the wait too long."""
    error, options = asked.error, journal.options
    assert error is not None
    if error.retry_after_s is not None:  # without a forecast there is no estimate
        assert asked.forecast, f"{asked}: an estimate out of nothing"
        assert 0 <= error.retry_after_s < math.inf, f"{asked}: retry after {error.retry_after_s} s"
    late = options.refuse_late and asked.deadline_s < math.inf and asked.forecast
    rows, size_bytes = asked.found_waiting
    full = rows + asked.request.rows > options.max_queue_rows
    return late or full or size_bytes + asked.request.size_bytes > options.max_queue_bytes


def check_scores(journal: Journal, asked: Asked) -> None:
    """Check that ``asked`` has the outputs it asked for, bit for bit, from whom it asked."""
    response, request = asked.task.result(), asked.request
    assert asked.sound, f"{asked} was answered though invalid"
    assert response.version == asked.target, f"{asked} was answered by {response.version}"
    names = list(request.outputs or ("default", "double"))
    assert sorted(response.outputs) == sorted(names), f"{asked} has {list(response.outputs)}"
    if request.rows == 0:
        assert not any(array.size for array in response.outputs.values()), asked
        return
    assert not fault_of(request), f"{asked} was answered though it fails"
    scores = journal.backends(asked)[0].score(request)
    for name, array in response.outputs.items():
        right = np.array_equal(array, scores * {"default": 1, "double": 2}[name])
        assert right, f"{asked}: {name} is {array}, not {scores}"
        assert array.dtype == np.float32, f"{asked}: {name} has dtype {array.dtype}"
    timing = response.timing
    assert 0 <= timing.queue_s <= asked.answered_s - asked.asked_s, f"{asked}: {timing}"
    most = journal.backends(asked)[0].spec.max_batch_rows
    assert 0 < timing.batch_rows <= most, f"{asked}: {timing}"
    assert all(journal.runs[row][-1].ended for row in asked.rows), f"{asked}: a row did not run"


def check_runs(journal: Journal, asked: Asked) -> None:
    """Check that each row ran at most once, but for the parts of a batch that failed."""
    for row in asked.rows:
        runs = journal.runs.get(row, [])
        assert all(run.failed for run in runs[:-1]), f"row {row} of {asked} ran again"
        assert all(map(is_part, runs[1:], runs)), f"row {row} of {asked} ran in another batch"
        assert not runs or (asked.admitted and asked.sound), f"{asked} ran though refused"
        assert all(run.backend.version == asked.target for run in runs), f"{asked} ran elsewhere"


def is_part(again: Run, before: Run) -> bool:
    return again.backend is before.backend and set(again.rows) < set(before.rows)


def check_order(journal: Journal) -> None:
    """Check that nothing overtook what it must not."""
    queues = defaultdict(list)
    for asked in journal.asked:
        if asked.taken_at < math.inf:
            queues[asked.target, asked.group].append(asked)
    for queue in queues.values():
        queue.sort(key=lambda asked: asked.taken_at)
        for place, first in enumerate(queue):
            for second in queue[place + 1 :]:
                overtakes = second.asked_at < first.taken_at < second.taken_at
                wrong = overtakes and outranks(second, first, journal.options.ageing_s)
                assert not wrong, f"{first} overtook {second}"


def outranks(one: Asked, other: Asked, ageing_s: float) -> bool:
    """Return whether ``one`` had to be served before ``other``, both waiting."""
    classes = one.request.priority - other.request.priority
    older_s = other.asked_s - one.asked_s
    if classes < 0:
        return older_s > -ageing_s
    if classes > 0:
        return older_s > (1 + 2 * classes) * ageing_s
    if one.deadline_s < other.deadline_s:
        return one.deadline_s < other.asked_s + ageing_s
    return one.deadline_s == other.deadline_s and one.asked_at < other.asked_at


def check_sums(journal: Journal) -> None:
    """Check that started + dropped is what was admitted, and that refusals are counted."""
    asked = [one for one in journal.asked if one.asked_s < math.inf]
    started = sum(any(row in journal.runs for row in one.rows) for one in asked)
    admitted = sum(one.admitted for one in asked)
    refusals = (Code.OVERLOADED, Code.PAYLOAD_TOO_LARGE)
    refused = sum(not one.task.cancelled() and one.code in refusals for one in asked)
    dropped = sum(journal.drops.values()) - refused
    if not journal.dead_lanes:
        assert started + dropped == admitted, f"{started} started, {dropped} dropped, {admitted=}"
        ran = len(journal.runs)
        assert journal.computed_rows == ran, f"{ran} rows ran, {journal.computed_rows} observed"


def check_left_over(journal: Journal) -> None:
    """Check that nothing is left in any scheduler, nor of any backend."""
    for backend, scheduler in journal.schedulers.items():
        queue = scheduler._queue
        load = queue.up_to(journal.options.priorities)
        counts = (len(queue), queue.rows, queue._bytes, load.requests, load.rows, load.ids)
        assert not any(counts), f"{backend.version}: the queue still counts {counts}"
        assert not len(scheduler._replies), f"{backend.version} still owes answers"
    assert not any(journal.queued_rows.values()), f"last seen waiting: {journal.queued_rows}"
    for backend in journal.made:
        fine = backend.closed or not backend.loaded or may_stay_open(journal, backend)
        assert fine, f"{backend.version} was loaded but never closed"


def may_stay_open(journal: Journal, backend: SimulatedBackend) -> bool:
    """Return whether a lane was inside for too long, or the backend came too late to be of use."""
    scheduler = journal.schedulers.get(backend)
    if scheduler is None:
        return backend.loaded_s >= journal.close_s
    return any(thread.outlived for thread in threads_of(scheduler))
