"""Error bodies: one JSON object, both RFC 9457 and Open Inference Protocol."""

from http import HTTPStatus

import orjson
import pytest

from scheduler.errors import Code, ServingError
from tests.fixtures.stub_serving import problem
from transports.http.problem import (
    MAX_INSTANCE_CHARACTERS,
    HttpError,
    problem_of,
    status_problem,
    unexpected_problem,
)
from transports.status import STATUS


@pytest.mark.parametrize("code", list(Code))
def test_every_code_has_a_body_with_all_fields(code: Code) -> None:
    answer = problem_of(ServingError(code, "rows: 9 exceed 8"))
    document = problem(answer.body("/v1/predict"), STATUS[code].http)
    assert document["type"] == f"urn:narsil:error:{code.value}"
    assert document["detail"] == "rows: 9 exceed 8"
    assert document["instance"] == "/v1/predict"


@pytest.mark.parametrize(
    ("retry_after_s", "header"), [(None, "1"), (0.0, "1"), (0.2, "1"), (1.01, "2"), (30.0, "30")]
)
@pytest.mark.parametrize("code", [Code.OVERLOADED, Code.UNAVAILABLE])
def test_retry_after_is_whole_seconds_and_at_least_one(
    code: Code, retry_after_s: float | None, header: str
) -> None:
    answer = problem_of(ServingError(code, "busy", retry_after_s))
    assert answer.headers == {"retry-after": header}


def test_an_error_that_no_retry_mends_says_nothing_of_retries() -> None:
    assert problem_of(ServingError(Code.INTERNAL, "broken", 5.0)).headers == {}


def test_a_status_without_a_code_takes_its_own_phrase() -> None:
    document = problem(status_problem(405, "no").body("/"), 405)
    assert (document["type"], document["title"]) == ("about:blank", "Method Not Allowed")


def test_an_http_error_keeps_its_headers() -> None:
    answer = problem_of(HttpError(HTTPStatus.METHOD_NOT_ALLOWED, "no", {"allow": "POST"}))
    assert answer.headers == {"allow": "POST"}


def test_a_bug_of_ours_tells_the_client_nothing_about_it() -> None:
    assert "log" in orjson.loads(unexpected_problem().body("/"))["detail"]


def test_a_long_path_is_cut() -> None:
    document = problem(status_problem(404, "no").body("/" * 10_000), 404)
    assert len(document["instance"]) == MAX_INSTANCE_CHARACTERS
