"""What watching costs a request: ``python -m tests.watching_cost``.

One JSON request after another goes through the HTTP application and the engine, without sockets,
to the fake model, each a batch of its own; every way of watching in turn, many times over.
"""

import asyncio
import io
import logging
import time
from collections.abc import Callable
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from app.observe import PrometheusObserver
from app.request_log import LogOptions, RequestLog
from app.tracing.spans import Spans
from backends.fake import FakeBackend
from scheduler.engine import Engine
from scheduler.observer import Observer
from scheduler.options import SchedulerOptions
from tests.fixtures.requests import as_json, random_request
from transports.http.app import HttpApp
from transports.http.intake import Intake
from transports.http.server import HttpTransport

ROUNDS, REQUESTS = 60, 40


class _Nowhere(SpanExporter):
    def export(self, spans: Any) -> SpanExportResult:
        """Take the spans; encoding and sending them is another thread's."""
        return SpanExportResult.SUCCESS


def _spans(ratio: float) -> Observer:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(_Nowhere()))
    return PrometheusObserver(following=Spans(Observer(), provider, ratio))


def _logging(ratio: float) -> Observer:
    options = LogOptions(requests=True, sample_ratio=ratio, max_per_s=10**9)
    return PrometheusObserver(RequestLog(options))


WAYS: dict[str, Callable[[], Observer]] = {
    "nothing": Observer,
    "metrics": PrometheusObserver,
    "metrics, 1 % traced": lambda: _spans(0.01),
    "metrics, all traced": lambda: _spans(1.0),
    "metrics, 1 % logged": lambda: _logging(0.01),
    "metrics, all logged": lambda: _logging(1.0),
}


class _Setting:
    """One application, and what a request to it takes."""

    def __init__(self, observer: Observer) -> None:
        self.backend = FakeBackend(FakeBackend.Options(remembered_batches=0))
        self.engine = Engine(SchedulerOptions(), observer)
        self.app: Any = None
        self.spent_us: list[float] = []

    async def start(self) -> None:
        """Load and open."""
        await self.engine.load(self.backend)
        self.engine.open()
        self.app = HttpApp(self.engine, Intake(HttpTransport.Options()))

    async def ask(self, body: bytes) -> None:
        """Ask once."""
        received = asyncio.Event()
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            if messages:
                return messages.pop()
            await received.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            assert message.get("status", 200) == 200

        headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/v1/predict", "http_version": "1.1",
                 "headers": headers, "query_string": b"", "raw_path": b"/v1/predict"}  # fmt: skip
        await self.app(scope, receive, send)


async def main() -> None:
    """Print a line for each way."""
    logging.basicConfig(stream=io.StringIO(), level=logging.WARNING)
    settings = {name: _Setting(make()) for name, make in WAYS.items()}
    for setting in settings.values():
        await setting.start()
    spec = settings["nothing"].backend.spec
    body = as_json(random_request(spec, 10, seed=1), spec)
    for _ in range(ROUNDS):
        for setting in settings.values():
            began_s = time.process_time()
            for _ in range(REQUESTS):
                await setting.ask(body)
            setting.spent_us.append((time.process_time() - began_s) / REQUESTS * 1e6)
    # The least of what was seen: others on the machine only add.
    base_us = min(settings["nothing"].spent_us)
    for name, setting in settings.items():
        least_us = min(setting.spent_us)
        print(f"{name:<22} {least_us:7.1f} us, {least_us - base_us:+7.2f} us")
    for setting in settings.values():
        await setting.engine.close(1.0)


if __name__ == "__main__":
    asyncio.run(main())
