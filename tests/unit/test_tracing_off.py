"""Tracing that nobody asked for."""

import subprocess
import sys

import pytest

from app.tracing.options import TracingOptions
from app.tracing.tracing import TracingError, traced
from app.watching import Watching, WatchOptions
from scheduler.observer import Observer

SAMPLED = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def test_without_a_collector_there_is_no_link_in_the_chain_and_no_span() -> None:
    observer = Observer()
    following, end = traced(observer, TracingOptions())
    assert following is observer
    assert Watching(WatchOptions()).prometheus.traced(SAMPLED, "", 0.0) is None
    await end()


def test_a_server_that_does_not_trace_does_not_import_opentelemetrys_sdk() -> None:
    program = (
        "import sys, app.cli, app.watching as w, transports.http.server, transports.grpc.server;"
        " w.Watching(w.WatchOptions());"
        " sys.exit(any(name.startswith('opentelemetry.sdk') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "app.tracing.export", None)
    with pytest.raises(TracingError, match="this project's extra 'otel' has it"):
        traced(Observer(), TracingOptions("http://127.0.0.1:1"))


@pytest.mark.parametrize(
    ("endpoint", "protocol", "ratio", "what"),
    [
        ("collector:4317", "grpc", 1.0, "must be an http:// or https:// URL"),
        ("http://me:secret@collector", "grpc", 1.0, "must have no password"),
        ("http://collector", "thrift", 1.0, "protocol must be grpc or http, got 'thrift'"),
        ("http://collector", "grpc", 1.1, "ratio must be from 0 to 1, got 1.1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    endpoint: str, protocol: str, ratio: float, what: str
) -> None:
    with pytest.raises(ValueError, match=what):
        TracingOptions(endpoint, protocol, ratio)
