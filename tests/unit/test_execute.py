import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler import execute as core
from scheduler.backend import Compute
from scheduler.errors import Code, ServingError
from scheduler.execute import Outcome, check
from scheduler.types import Batch, InferRequest
from tests.fixtures.gates import Outputs, TwistedBackend, make_request

PLAIN = "the model failed on this request; the server log says why"


def batch_of(*rows: int) -> Batch:
    return Batch(tuple(make_request(count, seed) for seed, count in enumerate(rows)))


def execute(backend: FakeBackend, batch: Batch) -> list[Outcome]:
    return core.execute(backend, batch).outcomes


def failing_on(
    backend: FakeBackend, guilty: tuple[InferRequest, ...], error: Exception
) -> FakeBackend:
    def before_run(batch: Batch) -> None:
        if any(request in guilty for request in batch.requests):
            raise error

    backend.before_run = before_run
    return backend


def outputs_of(outcome: Outcome) -> Outputs:
    assert isinstance(outcome.result, Mapping)
    return outcome.result


def error_of(outcome: Outcome) -> ServingError:
    assert isinstance(outcome.result, ServingError)
    return outcome.result


def test_the_fake_scores_the_weighted_sum_of_dense_features_and_of_the_ids_of_each_bag() -> None:
    inputs = {
        "float_features": np.array([[1, 0, 0], [0, 1, 1]], np.float32),
        "id_list_features.lengths": np.array([[2, 1], [0, 1]]),
        "id_list_features.values": np.array([3, 4, 5, 6]),
    }
    (outcome,) = execute(FakeBackend(FakeOptions()), Batch((InferRequest("fake", 2, inputs),)))
    # Row 0: 1 + (3 + 4) and an empty second bag. Row 1: 2 + 3 + 5 and, of weight 2, 6.
    assert outputs_of(outcome)["default"].tolist() == [8.0, 22.0]


def test_each_request_gets_exactly_its_own_rows_of_a_shared_batch() -> None:
    backend, batch = FakeBackend(FakeOptions()), batch_of(3, 1, 7)
    outcomes = execute(backend, batch)
    for request, outcome in zip(batch.requests, outcomes, strict=True):
        np.testing.assert_array_equal(outputs_of(outcome)["default"], backend.score(request))
        assert outcome.batch_rows == 11
    assert list(backend.batches) == [batch]


def test_the_requests_of_a_batch_share_one_compute_time() -> None:
    outcomes = execute(FakeBackend(FakeOptions()), batch_of(3, 1))
    assert outcomes[0].compute_s == outcomes[1].compute_s > 0


def test_outputs_are_views_of_the_batch_and_not_copies() -> None:
    outcomes = execute(FakeBackend(FakeOptions()), batch_of(3, 1))
    first, second = (outputs_of(outcome)["default"] for outcome in outcomes)
    assert first.base is second.base is not None


def test_what_was_gathered_ahead_is_computed_without_gathering_it_again() -> None:
    gathered: list[Batch] = []

    class Counting(FakeBackend):
        def prepare(self, batch: Batch) -> Compute:
            gathered.append(batch)
            return super().prepare(batch)

    backend, batch = Counting(FakeOptions()), batch_of(2, 3)
    prepared = core.prepare(backend, batch)
    assert prepared is not None
    execution = core.execute(backend, batch, prepared)
    assert gathered == [batch]
    assert execution.gather_s == prepared.gather_s == execution.outcomes[0].gather_s


def test_what_cannot_be_gathered_ahead_is_logged_and_left_for_the_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Unprepared(FakeBackend):
        def prepare(self, batch: Batch) -> Compute:
            raise RuntimeError("no room")

    assert core.prepare(Unprepared(FakeOptions()), batch_of(2, 3)) is None
    assert "no room" in caplog.text


def test_a_request_that_failed_alone_is_not_run_again() -> None:
    batch = batch_of(2)
    backend = failing_on(FakeBackend(FakeOptions()), batch.requests, RuntimeError("boom"))
    (outcome,) = execute(backend, batch)
    assert error_of(outcome).code is Code.INTERNAL
    assert outcome.batch_rows == 2
    assert list(backend.batches) == [batch]


def test_what_a_backend_raises_is_logged_and_not_shown_to_the_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    batch = batch_of(2)
    backend = failing_on(FakeBackend(FakeOptions()), batch.requests, KeyError("secret path"))
    assert error_of(execute(backend, batch)[0]).detail == PLAIN
    assert "request-0" in caplog.text
    assert "secret path" in caplog.text


def test_a_serving_error_of_the_backend_is_the_answer_to_the_guilty_request_alone() -> None:
    batch = batch_of(2, 2)
    error = ServingError(Code.UNSUPPORTED, "no such head")
    outcomes = execute(failing_on(FakeBackend(FakeOptions()), batch.requests[:1], error), batch)
    assert outcomes[0].result is error
    assert isinstance(outcomes[1].result, Mapping)


TWISTS: list[tuple[str, Any, str]] = [
    ("one row too few", lambda batch, out: {"default": out["default"][:-1]}, "5 rows"),
    ("one row too many", lambda batch, out: {"default": np.zeros(6, np.float32)}, "5 rows"),
    ("no rows axis", lambda batch, out: {"default": np.float32(1)}, "got float32 with shape ()"),
    ("wrong name", lambda batch, out: {"score": out["default"]}, "'default' is missing"),
    ("wrong dtype", lambda batch, out: {"default": out["default"].astype(float)}, "float64"),
    ("no array", lambda batch, out: {"default": out["default"].tolist()}, "list"),
    ("no mapping", lambda batch, out: None, "NoneType"),
]


@pytest.mark.parametrize(("twist", "logged"), [pytest.param(*t[1:], id=t[0]) for t in TWISTS])
def test_wrong_outputs_are_our_fault_and_the_log_names_expected_and_actual(
    twist: Any, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    backend = TwistedBackend(FakeOptions(), twist)
    (outcome,) = execute(backend, batch_of(5))
    assert error_of(outcome).code is Code.INTERNAL
    assert error_of(outcome).detail == PLAIN
    assert logged in caplog.text


@pytest.mark.parametrize("twist", [pytest.param(t[1], id=t[0]) for t in TWISTS])
def test_wrong_outputs_for_a_shared_batch_do_not_fail_requests_that_run_well_alone(
    twist: Any,
) -> None:
    def twist_shared(batch: Batch, outputs: Outputs) -> Any:
        return twist(batch, outputs) if len(batch.requests) > 1 else outputs

    batch = batch_of(2, 3)
    backend = TwistedBackend(FakeOptions(), twist_shared)
    for request, outcome in zip(batch.requests, execute(backend, batch), strict=True):
        np.testing.assert_array_equal(outputs_of(outcome)["default"], backend.score(request))


@pytest.mark.parametrize(
    "extra",
    [np.float32(1), np.zeros((), np.float32), None, 3],
    ids=["scalar", "0-d", "None", "int"],
)
def test_an_output_the_spec_does_not_name_never_reaches_a_client_nor_breaks_the_lane(
    extra: Any,
) -> None:
    backend = TwistedBackend(FakeOptions(), lambda batch, out: {**out, "debug": extra})
    for outcome in execute(backend, batch_of(2, 3)):
        if isinstance(outcome.result, Mapping):
            assert list(outcome.result) == ["default"]
        else:
            assert outcome.result.code is Code.INTERNAL


def test_a_batch_that_fails_once_is_logged_once_with_its_size_and_cause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    backend = FakeBackend(FakeOptions())

    def before_run(batch: Batch) -> None:
        if len(batch.requests) > 2:
            raise RuntimeError("too many")

    backend.before_run = before_run
    execute(backend, batch_of(1, 1, 1))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "batch of 3" in record.getMessage()
    assert "too many" in record.getMessage()


def test_check_lets_a_valid_request_pass() -> None:
    check(FakeBackend(FakeOptions()), make_request(2))


def test_check_passes_the_backends_own_refusal_on() -> None:
    request = make_request(1)
    wrong = replace(
        request, inputs={**request.inputs, "id_list_features.lengths": np.array([[9], [9]])}
    )
    with pytest.raises(ServingError) as refusal:
        check(FakeBackend(FakeOptions()), wrong)
    assert refusal.value.code is Code.INVALID_REQUEST


@pytest.mark.parametrize("error", [RuntimeError("secret"), StopIteration(), KeyError("x")])
def test_anything_else_that_check_raises_is_our_fault_and_logged(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    class Unchecked(FakeBackend):
        def check(self, request: InferRequest) -> None:
            raise error

    with pytest.raises(ServingError) as refusal:
        check(Unchecked(FakeOptions()), make_request(1, seed=7))
    assert refusal.value.code is Code.INTERNAL
    assert refusal.value.detail == PLAIN
    assert refusal.value.__cause__ is error
    assert "request-7" in caplog.text
