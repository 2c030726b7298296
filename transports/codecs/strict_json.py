"""Bytes -> JSON object, refusing what orjson lets pass or says too little about.

orjson refuses NaN, Infinity, numbers past float64 and nesting over 1024 levels, but keeps the
last of two equal keys in silence. A hook on every object would find duplicates at several times
the cost of the parse, so they are counted instead: every key has a colon of its own outside of
strings, and a key that was dropped leaves a colon too many.
"""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson

from scheduler.errors import invalid

# Naming a duplicate key takes a second, slow parse (80 ns a byte): only of what is short.
_NAMED_KEY_BYTES = 256 << 10


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
    keys = _keys(document)
    # Colons within strings are rare, and without any the cheap count is the exact one.
    if text.count(b":") > keys and _colons(text) > keys:
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


def _keys(document: dict[str, Any]) -> int:
    """Count the keys of ``document`` and of the objects in it.

    Of lists only those that begin with an object are looked through; numbers are many.
    """
    total = 0
    level = [document]
    while level:
        total += sum(map(len, level))
        level = [inner for members in level for inner in _objects(members)]
    return total


def _objects(members: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for value in members.values():
        if type(value) is dict:
            yield value
        elif type(value) is list and value and type(value[0]) is dict:
            yield from (entry for entry in value if type(entry) is dict)


def _colons(text: bytes) -> int:
    """Count the colons of a valid JSON text that stand outside of strings."""
    if b"\\" in text:
        # Escaped backslashes first: a backslash that is left before a quote then escapes it.
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    characters = np.frombuffer(text, np.uint8)
    quotes = np.cumsum(characters == ord('"'), dtype=np.uint8)  # wraps, and stays odd or even
    return int(np.count_nonzero((characters == ord(":")) & (quotes % 2 == 0)))


def _refuse_duplicates(text: bytes) -> None:
    """Name the key given twice; return if there is none: an object deep within a list."""
    if len(text) > _NAMED_KEY_BYTES:
        raise invalid("a key is given twice in one object, or a list holds an object")
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
