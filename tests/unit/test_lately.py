"""What the page shows of the last five minutes."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.companions import MAX_BYTES, FolderCompanions
from app.families import SECONDS
from app.lately import KEPT_ERRORS, KEPT_SECONDS
from app.models import ModelConfig, Served
from app.observe import PrometheusObserver
from app.plugins import Plugin
from app.second import Second, percentiles
from app.settings import Section
from backends.native_dlrm.options import NativeDlrmOptions
from scheduler.errors import Code
from scheduler.observer import Answered, Computed
from scheduler.types import ModelSpec


def spec(name: str) -> ModelSpec:
    return ModelSpec(name, "1", (), (), max_batch_rows=1)


def served(*names: str) -> PrometheusObserver:
    observer = PrometheusObserver()
    observer.serving(tuple(map(spec, names)))
    observer._lately.look(0.0)
    return observer


def answer(observer: PrometheusObserver, model: str, duration_s: float, code: Code | None) -> None:
    observer.answered(
        Answered("grpc", model, 1, code, duration_s, "id", "<b>why</b>", "1", "trace")
    )


def test_each_second_has_what_was_done_in_it() -> None:
    observer = served("a", "b")
    for _ in range(4):
        answer(observer, "a", 0.0009, None)
    answer(observer, "b", 0.002, Code.OVERLOADED)
    observer.computed(Computed("a", 30, 5, 0, 0.1, 0.1, (0.0, 0.0, 0.0)))
    observer.queued(spec("a"), 7, 0, 0)
    observer._lately.look(0.5)
    observer.queued(spec("a"), 2, 0, 0)
    observer._lately.look(2.0)
    observer.queued(spec("a"), 0, 0, 0)
    observer._lately.look(3.0)
    every, one = observer.recent("", 0), observer.recent("a", 0)
    assert (every["first"], every["next"]) == (0, 2)
    assert every["series"]["requests_per_s"] == [2.5, 0.0]
    assert every["series"]["errors_per_s"] == [0.5, 0.0]
    assert one["series"]["requests_per_s"] == [2.0, 0.0]
    assert one["series"]["batch_rows"] == [30.0, None]
    assert one["series"]["batch_requests"] == [3.0, None]
    assert one["series"]["waiting_rows"] == [7, 0]
    assert one["series"]["p99_ms"][1] is None
    assert 0.75 < one["series"]["p50_ms"][0] <= 1.0
    assert observer.recent("b", 1)["series"]["requests_per_s"] == [0.0]
    assert observer.recent("nobody", 0)["series"]["requests_per_s"] == [0.0, 0.0]


def test_five_minutes_are_kept_and_numbers_go_on() -> None:
    observer = served("a")
    for second in range(1, KEPT_SECONDS + 11):
        observer._lately.look(float(second))
    shown = observer.recent("", 0)
    assert (shown["first"], shown["next"]) == (10, KEPT_SECONDS + 10)
    assert len(shown["series"]["p50_ms"]) == KEPT_SECONDS
    late = observer.recent("", 10**15)
    assert (late["first"], late["series"]["p50_ms"]) == (KEPT_SECONDS + 10, [])


def test_errors_are_told_once_bounded_and_by_model() -> None:
    observer = served("a")
    for _ in range(KEPT_ERRORS + 5):
        answer(observer, "a", 0.1, Code.OVERLOADED)
    assert observer.recent("", 0)["errors"] == []  # with the second that they are in
    observer._lately.look(1.0)
    told = observer.recent("a", 0)
    assert len(told["errors"]) == KEPT_ERRORS
    assert told["errors"][0].items() >= {
        "code": "overloaded", "model": "a", "version": "1", "transport": "grpc",
        "request_id": "id", "trace_id": "trace", "detail": "<b>why</b>",
    }.items()  # fmt: skip
    assert observer.recent("a", told["next"])["errors"] == []
    assert observer.recent("b", 0)["errors"] == []


@given(st.lists(st.integers(0, 50), min_size=len(SECONDS) + 1, max_size=len(SECONDS) + 1))
def test_a_percentile_lies_in_the_bucket_that_it_falls_into(counts: list[int]) -> None:
    found = percentiles(counts, SECONDS, (0.5, 0.95, 0.99))
    if not any(counts):
        assert found == [None] * 3
        return
    values = [each for each in found if each is not None]
    assert values == sorted(values)
    bounds = (0.0, *SECONDS, SECONDS[-1])
    for share, value in zip((0.5, 0.95, 0.99), values, strict=True):
        at = next(i for i in range(len(counts)) if sum(counts[: i + 1]) >= share * sum(counts))
        assert bounds[at] <= value <= bounds[at + 1] * (1 + 1e-9)


def test_seconds_add_up_and_subtract() -> None:
    one = Second(3, 1, 2, 3, 30, (1, 2))
    assert one + Second() == one
    assert one - one == Second(durations=(0, 0))
    assert not one - one
    assert Second() + one + one == Second(6, 2, 4, 6, 60, (2, 4))


@pytest.fixture
def companions(tmp_path: Path) -> FolderCompanions:
    (tmp_path / "example.json").write_bytes(b"{}")
    section = Section("backend", NativeDlrmOptions(path=str(tmp_path)), {})
    plugin: Plugin[object] = Plugin(NativeDlrmOptions, lambda options: options)
    config = ModelConfig("", plugin, section, section)  # type: ignore[arg-type]  # never built
    model = Served(config, ModelSpec("a", "1", (), (), max_batch_rows=1))
    return FolderCompanions({"a": model}.get)


async def test_what_lies_beside_a_model_is_read_if_it_is_there_and_not_huge(
    companions: FolderCompanions, tmp_path: Path
) -> None:
    assert await companions.read("a", "example.json") == b"{}"
    assert await companions.read("a", "catalogue.json") is None
    assert await companions.read("../a", "example.json") is None
    with (tmp_path / "catalogue.json").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    assert await companions.read("a", "catalogue.json") is None
