"""What is kept of requests and batches until somebody looks."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.families import SECONDS
from app.observe import PrometheusObserver
from app.pending import MOST
from app.series import Histogram
from scheduler.observer import Answered, Computed
from scheduler.types import ModelSpec


def spec(version: str) -> ModelSpec:
    return ModelSpec("a", version, (), (), max_batch_rows=1)


def answered(version: str) -> Answered:
    return Answered("http", "a", 1, None, 0.001, version=version)


def lines(observer: PrometheusObserver) -> Iterable[str]:
    return observer.exposition("text/plain")[0].decode().splitlines()


def test_what_is_kept_to_be_counted_later_is_bounded_and_counted_once() -> None:
    observer = PrometheusObserver()
    observer.serving((spec("1"),))
    for number in range(3 * MOST):
        observer.answered(answered("1"))
        observer.computed(Computed("a", number % 3, 1, number % 2, 0.5, 0.5, (0.25,), version="1"))
        assert len(observer._pending.answered) < MOST
        assert len(observer._pending.computed) < MOST
    for _ in range(2):  # a second look finds no more
        ok = f'narsil_requests_total{{code="ok",model="a",transport="http"}} {3 * MOST}.0'
        assert {ok, f'narsil_batch_rows_sum{{model="a"}} {3 * MOST}.0'} <= set(lines(observer))
        figures = observer.of("a", "1")
        assert (figures.success.count, figures.batches, figures.rows) == (3 * MOST,) * 3


def test_versions_that_go_take_what_waits_and_was_counted_of_them_along() -> None:
    observer = PrometheusObserver()
    observer.serving((spec("1"), spec("2")))
    observer.queued(spec("1"), 2, 1, 0)
    observer.queued(spec("2"), 3, 2, 0)
    observer.answered(answered("1"))
    observer.queued(spec("1"), 0, 0, 0)
    observer.serving((spec("2"),))
    assert set(observer.all()) <= {("a", "2")}
    assert observer.waiting() == {("a", "2"): 2}
    assert 'narsil_queue_depth_rows{model="a"} 3.0' in lines(observer)


@given(st.lists(st.floats(0, 20, width=32), max_size=50))
def test_many_values_at_once_count_as_one_by_one(values: list[float]) -> None:
    one_by_one, at_once = Histogram(SECONDS), Histogram(SECONDS)
    for value in values:
        one_by_one.observe(value)
    at_once.observe_all(values)
    assert at_once.counts() == one_by_one.counts()
    assert at_once.sum() == pytest.approx(one_by_one.sum())
