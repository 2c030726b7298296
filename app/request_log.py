"""A word on requests in the log: on those that fail, and one line of JSON on each if asked."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.log_format import as_json, mark_json
from app.sampling import in_sample
from scheduler.errors import Code
from scheduler.observer import Answered

logger = logging.getLogger(__name__)

MAX_DETAIL_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Choose what the log says, and how much of it."""

    format: str = field(
        default="text", metadata={"help": "text, or json: one object a line, of every line"}
    )
    requests: bool = field(
        default=False, metadata={"help": "one line of JSON for each request, whatever the format"}
    )
    sample_ratio: float = field(
        default=1.0, metadata={"help": "share of the requests that succeed that have a line"}
    )
    max_per_s: int = field(
        default=100,
        metadata={"help": "lines a second on requests that fail, and as many on others"},
    )

    def __post_init__(self) -> None:
        """Refuse what could not work. Raises ValueError."""
        if self.format not in ("text", "json"):
            raise ValueError(f"format must be text or json, got {self.format!r}")
        if not 0 <= self.sample_ratio <= 1:
            raise ValueError(f"sample_ratio must be from 0 to 1, got {self.sample_ratio:g}")
        if self.max_per_s < 1:
            raise ValueError(f"max_per_s must be 1 or more, got {self.max_per_s}")


class Limit:
    """Let so many a second pass; ``suppressed`` counts the others since it was last taken."""

    def __init__(self, per_s: int) -> None:
        self._per_s = per_s
        self._began_s = 0.0
        self._passed = 0
        self._suppressed = 0

    def passes(self, now_s: float) -> bool:
        """Return whether one more may pass."""
        if now_s - self._began_s >= 1.0:
            self._began_s, self._passed = now_s, 0
        if self._passed < self._per_s:
            self._passed += 1
            return True
        self._suppressed += 1
        return False

    def take_suppressed(self, now_s: float) -> int:
        """Return how many did not pass, once their second is over, and forget them."""
        if not self._suppressed or now_s - self._began_s < 1.0:
            return 0
        number, self._suppressed = self._suppressed, 0
        return number


class RequestLog:
    """Write about requests; ``now_s`` is a clock that never steps."""

    def __init__(
        self, options: LogOptions | None = None, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        options = options or LogOptions()
        self.all_requests = options.requests
        self._ratio = options.sample_ratio
        self._now_s = now_s
        self._limits = {"errors": Limit(options.max_per_s), "successes": Limit(options.max_per_s)}
        if options.requests:  # asked for by name: whatever the level of other lines
            logger.setLevel(logging.INFO)

    def answered(self, record: Answered) -> None:
        """Write a line on a request that failed, or on one that is in the sample."""
        if record.code is None:
            wanted, kind = in_sample(self._ratio), "successes"
        else:
            wanted, kind = True, "errors"
        if wanted and self._limits[kind].passes(self._now_s()):
            write = self._write_json if self.all_requests else _write_text
            write(_level(record.code), record)

    def tell_suppressed(self) -> None:
        """Say how many lines the limit has kept out of the log, if their second is over."""
        now_s = self._now_s()
        for kind, limit in self._limits.items():
            if number := limit.take_suppressed(now_s):
                logger.warning(
                    "%d lines on requests left out (%s, log.max_per_s)", number, kind,
                    extra={"suppressed": number},
                )  # fmt: skip

    def _write_json(self, level: int, record: Answered) -> None:
        fields = {"level": logging.getLevelName(level).lower(), **_fields(record)}
        logger.log(level, "%s", as_json(fields), extra=mark_json())


def _level(code: Code | None) -> int:
    return logging.ERROR if code is Code.INTERNAL else logging.INFO


def _write_text(level: int, record: Answered) -> None:
    logger.log(
        level, "%s request %s%s: %s: %s",
        record.transport, record.request_id or "-",
        f" of trace {record.trace_id}" if record.trace_id else "",
        record.code and record.code.value, _one_line(record.detail),
    )  # fmt: skip


def _fields(record: Answered) -> Mapping[str, Any]:
    """Return what is known of a request; what is not known, or does not apply, is left out."""
    timing = record.timing
    fields: dict[str, Any] = {
        "event": "request",
        "request_id": record.request_id,
        "trace_id": record.trace_id,
        "span_id": record.trace.span_id if record.trace else "",
        "transport": record.transport,
        "operation": record.operation,
        "model": record.model,
        "version": record.version,
        "rows": record.rows,
        "status": record.code.value if record.code else "ok",
        "http_status": record.http_status,
        "dur_ms": _ms(record.duration_s),
        "bytes_in": record.bytes_in,
        "bytes_out": record.bytes_out,
        "err": record.detail[:MAX_DETAIL_CHARACTERS],
    }
    shown = {
        name: value for name, value in fields.items() if value not in ("", 0) or name == "rows"
    }
    if timing is not None:
        shown |= {
            "queue_ms": _ms(timing.queue_s),
            "gather_ms": _ms(timing.gather_s),
            "compute_ms": _ms(timing.compute_s),
            "batch_rows": timing.batch_rows,
        }
    return shown


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def _one_line(detail: str) -> str:
    """Escape what a client may have put into ``detail`` to forge a line of the log."""
    return detail[:MAX_DETAIL_CHARACTERS].encode("unicode_escape").decode("ascii")
