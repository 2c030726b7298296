"""Bytes -> JSON object, refusing what orjson lets pass or says too little about.

orjson refuses NaN, Infinity, numbers past float64 and nesting over 1024 levels, but keeps the
last of two equal keys in silence. Finding duplicates with a hook on every object costs more than
the parse itself, so they are first excluded by counting: a text without backslashes has one colon
per key plus the colons inside strings, and a key that was dropped leaves a colon too many.
"""

import json
from typing import Any

import orjson

from scheduler.errors import invalid


def parse_object(body: bytes | bytearray | memoryview) -> dict[str, Any]:
    """Return the JSON object in ``body``; ids past 64 bits arrive as floats.

    Raises ServingError (INVALID_REQUEST): empty, not JSON, not an object, or a key given twice.
    """
    text = bytes(body)
    if not text.strip(b" \t\r\n"):
        raise invalid("body is empty, expected a JSON object")
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise invalid(f"body is not JSON: {error}{_near(error)}") from error
    if not isinstance(document, dict):
        raise invalid(f"body is {shown(document)}, expected an object")
    if b"\\" in text or text.count(b":") != _colons(document):
        _refuse_duplicates(text)
    return document


def shown(value: object) -> str:
    """Return ``value`` as JSON for an error message: containers by kind, strings cut short."""
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "an object"
    # Cut first: a client can send a name as long as the body limit.
    cut = f"{value[:61]}..." if isinstance(value, str) and len(value) > 64 else value
    return json.dumps(cut)


def _near(error: orjson.JSONDecodeError) -> str:
    """Say which key stands before the fault, since orjson gives only a position."""
    colon = error.doc.rfind('":', 0, error.pos)
    start = error.doc.rfind('"', 0, max(colon, 0))
    if start < 0:
        return ""
    found = error.doc[error.pos : error.pos + 12]
    return f", at {found!r} after field {shown(error.doc[start + 1 : colon])}"


def _colons(document: dict[str, Any]) -> int:
    """Count the colons a text must have for the objects of ``document`` (lists not entered).

    Objects and strings within lists make the count too low, which costs a second look only.
    """
    total = 0
    # A stack, not recursion: orjson nests deeper than Python's call stack goes.
    objects = [document]
    while objects:
        current = objects.pop()
        total += len(current) + "".join(current).count(":")
        for value in current.values():
            if type(value) is dict:
                objects.append(value)
            elif type(value) is str:
                total += value.count(":")
    return total


def _refuse_duplicates(text: bytes) -> None:
    try:
        json.loads(text.decode(), object_pairs_hook=_unique)
    except (RecursionError, ValueError) as error:
        # orjson took the text, so this is one of the standard library's own limits
        # (about 1,000 levels, 4,300 digits); no valid request comes near either.
        raise invalid(f"body cannot be checked for duplicate keys: {error}") from error


def _unique(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise invalid(f"key {shown(key)} is given twice in one object")
        seen.add(key)
