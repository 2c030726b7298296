"""How a line of the log is written: as text, or as one JSON object."""

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_JSON = "is_json"


def as_json(fields: Mapping[str, Any]) -> str:
    """Return ``fields`` as one line, after the time.

    ASCII control characters are escaped and nothing else ends a line, whatever a client sent.
    """
    line = {"ts": datetime.now(UTC).isoformat(timespec="milliseconds"), **fields}
    try:
        return orjson.dumps(line).decode()
    except orjson.JSONEncodeError:  # a text that is no Unicode: half of a surrogate pair
        return orjson.dumps({name: _clean(value) for name, value in line.items()}).decode()


def mark_json() -> dict[str, Any]:
    """Return the ``extra`` of a record whose message is a line by itself."""
    return {_JSON: True}


def formatter(name: str) -> logging.Formatter:
    """Return the formatter called ``name``: text or json."""
    return _Json() if name == "json" else _Text(TEXT)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of ``record``."""
        return record.getMessage() if hasattr(record, _JSON) else super().format(record)


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """Return the line of ``record``."""
        if hasattr(record, _JSON):
            return record.getMessage()
        fields: dict[str, Any] = {
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return as_json(fields)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return value if isinstance(value, int | float) else repr(value)
