"""What the log says of requests, and how much of it."""

import json
import logging
from dataclasses import dataclass
from typing import Any

import pytest

from app.log_format import formatter
from app.observe import PrometheusObserver
from app.request_log import LogOptions, RequestLog
from scheduler.errors import Code
from scheduler.observer import Answered
from scheduler.types import Timing


@dataclass
class Clock:
    """A clock in the test's hands."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


def answered(code: Code | None = None, **fields: Any) -> Answered:
    return Answered("http", "ads", 2, code, 0.0015, "mine", **fields)


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(record.getMessage()) for record in caplog.records]


def test_a_request_has_a_line_of_json_that_says_where_its_time_went(
    caplog: pytest.LogCaptureFixture,
) -> None:
    observer = PrometheusObserver(RequestLog(LogOptions(requests=True)))
    timing = Timing(0.0001, 0.001, 8, 0.0002)
    record = answered(version="3", trace_id="4bf9", operation="POST /v1/predict",
                      http_status=200, bytes_in=10, bytes_out=20, timing=timing)  # fmt: skip
    observer.answered(record)
    (line,) = lines(caplog)
    assert line.pop("ts").endswith("+00:00")
    assert line == {
        "level": "info", "event": "request", "request_id": "mine", "trace_id": "4bf9",
        "transport": "http", "operation": "POST /v1/predict", "model": "ads", "version": "3",
        "rows": 2, "status": "ok", "http_status": 200, "dur_ms": 1.5, "bytes_in": 10,
        "bytes_out": 20, "queue_ms": 0.1, "gather_ms": 0.2, "compute_ms": 1.0, "batch_rows": 8,
    }  # fmt: skip


def test_successes_have_no_line_unless_asked_and_errors_have_one_anyway(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "app.request_log")
    observer = PrometheusObserver()
    observer.answered(answered())
    observer.answered(answered(Code.OVERLOADED, detail="full"))
    assert [record.getMessage() for record in caplog.records] == [
        "http request mine: overloaded: full"
    ]


@pytest.mark.parametrize(("ratio", "successes"), [(0.0, 0), (1.0, 5)])
def test_of_successes_a_sample_is_written_and_of_errors_every_one(
    ratio: float, successes: int, caplog: pytest.LogCaptureFixture
) -> None:
    log = RequestLog(LogOptions(requests=True, sample_ratio=ratio))
    for code in (None, Code.INTERNAL) * 5:
        log.answered(answered(code))
    written = [line["status"] for line in lines(caplog)]
    assert (written.count("ok"), written.count("internal")) == (successes, 5)


def test_what_is_over_the_limit_is_counted_and_successes_leave_room_for_errors(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    log = RequestLog(LogOptions(requests=True, max_per_s=2), clock)
    for code in (None, None, None, Code.INTERNAL, Code.INTERNAL, Code.INTERNAL, Code.INTERNAL):
        log.answered(answered(code))
    log.tell_suppressed()
    assert len(caplog.records) == 4
    clock.now_s += 1.0
    log.tell_suppressed()
    log.tell_suppressed()
    told = [record.getMessage() for record in caplog.records[4:]]
    assert told == [
        "2 lines on requests left out (errors, log.max_per_s)",
        "1 lines on requests left out (successes, log.max_per_s)",
    ]
    log.answered(answered(None))
    assert len(caplog.records) == 7


def test_a_line_on_a_request_is_one_line_of_ascii_whatever_the_client_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = RequestLog(LogOptions(requests=True))
    log.answered(answered(Code.INVALID_REQUEST, detail="a\n{\x1b[31m\udc80" + "x" * 1000))
    (record,) = caplog.records
    assert record.getMessage().isprintable()
    assert json.loads(record.getMessage())["err"].startswith("a\n{\x1b[31m\\udc80x")
    assert len(record.getMessage()) < 1000


def test_every_line_is_an_object_in_the_format_json() -> None:
    write = formatter("json").format
    record = logging.LogRecord("app.x", logging.ERROR, "", 0, "%s\n%s", ("a", "b"), None)
    line = json.loads(write(record))
    assert (line["level"], line["logger"], line["event"]) == ("error", "app.x", "a\nb")
    try:
        raise ArithmeticError("a bug")
    except ArithmeticError as error:
        record.exc_info = (type(error), error, error.__traceback__)
    assert "ArithmeticError: a bug" in json.loads(write(record))["traceback"]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"format": "xml"}, "format must be text or json, got 'xml'"),
        ({"sample_ratio": 1.5}, "sample_ratio must be from 0 to 1, got 1.5"),
        ({"max_per_s": 0}, "max_per_s must be 1 or more, got 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        LogOptions(**options)
