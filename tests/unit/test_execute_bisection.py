"""A failing batch is bisected: only the guilty fail, within a bound on the extra runs."""

from collections.abc import Mapping

import numpy as np
import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.errors import Code, DeviceLostError, ServingError
from scheduler.execute import execute
from scheduler.types import Batch
from tests.unit.test_execute import PLAIN, batch_of, error_of, failing_on, outputs_of

BOUND = 8 * 6 + 1  # runs for a batch of 64 = 2**6 requests


def test_invariant_7_a_failing_batch_is_bisected_so_only_the_guilty_request_fails() -> None:
    batch = batch_of(2, 3, 4)
    backend = failing_on(FakeBackend(FakeOptions()), batch.requests[1:2], RuntimeError("boom"))
    outcomes = execute(backend, batch).outcomes
    assert error_of(outcomes[1]).code is Code.INTERNAL
    for number in (0, 2):
        outcome, request = outcomes[number], batch.requests[number]
        np.testing.assert_array_equal(outputs_of(outcome)["default"], backend.score(request))
        assert outcome.batch_rows == request.rows
    assert [len(run.requests) for run in backend.batches] == [3, 1, 2, 1, 1]


@pytest.mark.parametrize(
    ("guilty", "runs"),
    [
        ([0], 13),  # the batch, then two halves at each of six halvings
        ([37], 13),
        ([0, 1], 13),
        ([0, 63], 23),
        ([5, 21, 37, 53], 39),  # the worst that four can be: a quarter each
        ([60, 61, 62, 63], 15),
    ],
)
def test_invariant_7_up_to_four_guilty_of_64_are_found_within_the_bound_on_runs(
    guilty: list[int], runs: int
) -> None:
    batch = batch_of(*[1] * 64)
    culprits = tuple(batch.requests[number] for number in guilty)
    execution = execute(failing_on(FakeBackend(FakeOptions()), culprits, KeyError()), batch)
    failed = [
        number
        for number, outcome in enumerate(execution.outcomes)
        if isinstance(outcome.result, ServingError)
    ]
    assert failed == guilty
    assert execution.runs == runs <= BOUND


def test_invariant_7_a_batch_whose_every_request_is_guilty_ends_at_the_bound_on_runs() -> None:
    batch = batch_of(*[1] * 64)
    backend = failing_on(FakeBackend(FakeOptions()), batch.requests, RuntimeError("boom"))
    execution = execute(backend, batch)
    assert [error_of(outcome).code for outcome in execution.outcomes] == [Code.INTERNAL] * 64
    assert execution.runs == len(backend.batches) == BOUND


def test_many_guilty_in_one_half_do_not_cost_the_other_half_its_answers() -> None:
    batch = batch_of(*[1] * 64)
    backend = failing_on(FakeBackend(FakeOptions()), batch.requests[:32], RuntimeError("boom"))
    for outcome in execute(backend, batch).outcomes[32:]:
        assert isinstance(outcome.result, Mapping)


def test_a_lost_device_is_called_no_more_and_every_request_of_the_batch_fails() -> None:
    batch = batch_of(1, 1, 1)
    backend = failing_on(FakeBackend(FakeOptions()), batch.requests, DeviceLostError("fell off"))
    execution = execute(backend, batch)
    assert execution.lost == "fell off"
    assert execution.runs == len(backend.batches) == 1
    assert [error_of(outcome).detail for outcome in execution.outcomes] == [PLAIN] * 3


def test_a_device_lost_in_one_half_leaves_the_other_half_unrun() -> None:
    backend, batch = FakeBackend(FakeOptions()), batch_of(1, 1, 1, 1)

    def before_run(batch: Batch) -> None:
        raise RuntimeError("boom") if len(batch.requests) > 2 else DeviceLostError

    backend.before_run = before_run
    execution = execute(backend, batch)
    assert execution.lost
    assert [len(run.requests) for run in backend.batches] == [4, 2]
    assert [error_of(outcome).code for outcome in execution.outcomes] == [Code.INTERNAL] * 4
