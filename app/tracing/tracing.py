"""Turn tracing on and off."""

import asyncio
import contextlib
import importlib
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from app.tracing.options import TracingOptions
from scheduler.observer import Observer

End: TypeAlias = Callable[[], Awaitable[None]]

# How long the last spans may take to leave, when the server stops.
FLUSH_S = 2.0


class TracingError(Exception):
    """Say why there can be no tracing."""


async def _nothing() -> None:
    """End nothing."""


def traced(following: Observer, options: TracingOptions) -> tuple[Observer, End]:
    """Return an observer that traces and passes on to ``following``, and how to end it.

    Without an endpoint that is ``following`` itself. Raises TracingError.
    """
    if not options.endpoint:
        return following, _nothing
    try:
        export: Any = importlib.import_module("app.tracing.export")
        spans: Any = importlib.import_module("app.tracing.spans")
    except ImportError as error:
        raise TracingError(f"{error}; this project's extra 'otel' has it") from error
    provider = export.make_provider(options)
    observer: Observer = spans.Spans(following, provider, options.ratio)
    return observer, lambda: _end(provider.shutdown)


async def _end(shutdown: Callable[[], None]) -> None:
    """Send the last spans, within reason: a collector that is gone must not hold the server."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def run() -> None:
        shutdown()
        with contextlib.suppress(RuntimeError):  # the loop has not waited so long
            loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=run, name="tracing-end", daemon=True).start()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(ended.wait(), FLUSH_S)
