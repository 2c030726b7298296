import pytest

from scheduler.engine import Engine
from scheduler.errors import Code
from scheduler.observer import Answered, Computed, Observer
from scheduler.options import SchedulerOptions
from scheduler.types import ModelSpec
from transports.statistics import Spent, Statistics, statistics_of


class Exposing(Observer):
    """Remember what is passed on."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def loaded(self, spec: ModelSpec, lanes: int) -> None:
        self.heard.append((spec.version, lanes))

    def reloaded(self, model: str, outcome: str) -> None:
        self.heard.append((model, outcome))

    def answered(self, record: Answered) -> None:
        self.heard.append(record)

    def queued(self, spec: ModelSpec, rows: int, requests: int, batches: int) -> None:
        self.heard.append((spec.name, rows))

    def dropped(self, model: str, reason: str) -> None:
        self.heard.append((model, reason))

    def computed(self, record: Computed) -> None:
        self.heard.append(record)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        return accept.encode(), "text/plain"


def batch(rows: int, *queue_s: float, version: str = "1") -> Computed:
    return Computed(
        "m", rows, ids=0, lane=0, gather_s=0.001, compute_s=0.002, queue_s=queue_s, version=version
    )


def spec(version: str) -> ModelSpec:
    return ModelSpec("m", version, (), (), max_batch_rows=1)


def test_each_request_is_charged_with_its_whole_batch() -> None:
    statistics = Statistics(Observer(), now_s=lambda: 12.3456)
    statistics.computed(batch(5, 0.01, 0.02))
    statistics.computed(batch(3, 0.0))
    figures = statistics.of("m", "1")
    assert figures.queue == Spent(3, 30_000_000)
    assert figures.gather == Spent(3, 3_000_000)
    assert figures.compute == Spent(3, 6_000_000)
    assert (figures.rows, figures.batches, figures.last_ms) == (8, 2, 12346)
    assert figures.by_rows[5].compute == figures.by_rows[3].compute == Spent(1, 2_000_000)


@pytest.mark.parametrize("code", [None, *Code])
def test_answers_are_counted_by_their_outcome(code: Code | None) -> None:
    statistics = Statistics(Observer())
    statistics.answered(Answered("grpc", "m", 1, code, 0.5, version="1"))
    counted = Spent(1, 500_000_000)
    figures = statistics.of("m", "1")
    expected = (counted, Spent()) if code is None else (Spent(), counted)
    assert (figures.success, figures.fail) == expected


@pytest.mark.parametrize("model", ["", "m"])
def test_a_request_for_nothing_that_is_served_is_not_counted(model: str) -> None:
    statistics = Statistics(Observer())
    statistics.answered(Answered("grpc", model, 0, Code.MODEL_NOT_FOUND, 0.5))
    assert statistics.of(model, "").fail == Spent()


def test_each_version_has_figures_of_its_own_until_it_is_served_no_longer() -> None:
    statistics = Statistics(Observer())
    statistics.computed(batch(5, 0.0, version="1"))
    statistics.computed(batch(3, 0.0, version="2"))
    statistics.answered(Answered("grpc", "m", 3, None, 0.5, version="2"))
    assert [statistics.of("m", version).rows for version in "12"] == [5, 3]
    assert [statistics.of("m", version).success.count for version in "12"] == [0, 1]
    statistics.serving([spec("2")])
    assert [statistics.of("m", version).rows for version in "12"] == [0, 3]


def test_everything_is_passed_on() -> None:
    following = Exposing()
    statistics = Statistics(following)
    answered, computed = Answered("grpc", "m", 1, None, 0.5), batch(1, 0.0)
    statistics.loaded(spec("1"), lanes=2)
    statistics.reloaded("m", "ok")
    statistics.answered(answered)
    statistics.queued(spec("1"), 7, 1, 1)
    statistics.dropped("m", "deadline")
    statistics.computed(computed)
    assert following.heard == [
        ("1", 2),
        ("m", "ok"),
        answered,
        ("m", 7),
        ("m", "deadline"),
        computed,
    ]
    assert statistics.exposition("x") == (b"x", "text/plain")


def test_an_engine_has_statistics_if_it_reports_to_them() -> None:
    statistics = Statistics(Observer())
    assert statistics_of(Engine(SchedulerOptions(), statistics)) is statistics
    assert statistics_of(Engine(SchedulerOptions(), Observer())) is None
