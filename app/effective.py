"""The configuration as a line for the log, with nothing secret in it: all, or what was set."""

import re
from collections.abc import Iterable
from typing import Any

import orjson

from app.settings import DEFAULT, Section

HIDDEN = "***"
# As many settings stand in a line that somebody reads.
_MOST_SET = 20
# Keys whose values are secret, or are files that hold a secret.
_SECRET = re.compile("key|secret|password|token|credential", re.IGNORECASE)
# What stands before the host in a URL, and what is asked for behind it.
_IN_URL = re.compile(r"(?<=://)[^/@\s]+(?=@)|(?<=\?)\S+")


def redacted(sections: Iterable[Section]) -> str:
    """Return every value of ``sections`` as JSON by section and key, less what is secret."""
    values: dict[str, dict[str, Any]] = {}
    for section in sections:
        values[section.name] = {
            key: _shown(key, getattr(section.options, key)) for key in section.origins
        }
    return orjson.dumps(values, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def set_by_hand(sections: Iterable[Section]) -> str:
    """Return what of ``sections`` is not as it is by default, less what is secret."""
    found = [
        f"{section.name}.{key}={_brief(_shown(key, getattr(section.options, key)))}"
        for section in sections
        for key, origin in section.origins.items()
        if origin != DEFAULT
    ]
    more = f", and {len(found) - _MOST_SET} more" if len(found) > _MOST_SET else ""
    return (", ".join(found[:_MOST_SET]) or "all as it is by default") + more


def _brief(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _shown(key: str, value: Any) -> Any:
    if value and not isinstance(value, bool) and _SECRET.search(key):
        return HIDDEN
    if isinstance(value, tuple | list):
        return [_shown("", each) for each in value]
    return without_secrets(value) if isinstance(value, str) else value


def without_secrets(text: str) -> str:
    """Return ``text`` with what is secret in its URLs hidden."""
    return _IN_URL.sub(HIDDEN, text) if "://" in text else text
