"""Options that could not work are refused, by the name and the value."""

import math
from typing import Any

import pytest

from transports.http.admin import AdminOptions
from transports.http.server import HttpOptions
from transports.http3.server import Http3Options

WRONG: dict[str, tuple[Any, ...]] = {
    "port": (-1, 65_536),
    "max_request_bytes": (0, -1),
    "max_json_bytes": (0,),
    "max_buffered_bytes": (0, 67_108_863),
    "max_unsent_bytes": (0, 2**40 + 1),
    "body_timeout_s": (0.0, -1.0, math.inf, math.nan),
    "head_timeout_s": (0.0, math.nan),
    "write_timeout_s": (0.0, math.inf),
    "idle_timeout_s": (0.0, math.inf, math.nan),
    "keep_alive_s": (-1,),
    "backlog": (0, 65_536),
    "max_connections": (0,),
}
CASES = [
    pytest.param(options, name, value, id=f"{options.__name__} {name} {value}")
    for options in (HttpOptions, Http3Options, AdminOptions)
    for name, values in WRONG.items()
    if name in options.__dataclass_fields__
    for value in values
]


@pytest.mark.parametrize(("options", "name", "value"), CASES)
def test_a_number_out_of_range_is_refused_by_name(
    options: type[Any], name: str, value: float
) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be .* got {value}$"):
        options(**{name: value})


@pytest.mark.parametrize("options", [HttpOptions, Http3Options, AdminOptions])
def test_any_free_port_may_be_asked_for(options: type[Any]) -> None:
    assert options(port=0).port == 0


def test_a_buffer_must_hold_one_whole_body() -> None:
    with pytest.raises(ValueError, match=r"max_request_bytes \(1000\)"):
        HttpOptions(max_request_bytes=1000, max_buffered_bytes=999)
