"""A dataclass from a JSON document, every field of the type it is declared with."""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")


def typed(kind: type[T], document: object, where: str = "") -> T:
    """Return a ``kind`` of ``document``; JSON's own types, none turned into another.

    What has a default may be missing.

    Raises ValueError or TypeError naming the field, what it must be and what it is.
    """
    if not isinstance(document, dict):
        raise TypeError(f"{where.rstrip('.') or 'it'} must be an object, not {_said(document)}")
    hints = get_type_hints(kind)
    known = fields(cast("Any", kind))
    for each in known:
        if each.name not in document and each.default is MISSING:
            raise ValueError(f"{where}{each.name} is missing")
    for name in document:
        if name not in hints:
            raise ValueError(f"{where}{name} is not known")
    given = [each.name for each in known if each.name in document]
    return kind(**{name: _value(hints[name], document[name], where + name) for name in given})


def _value(wanted: Any, value: object, name: str) -> object:
    if get_origin(wanted) is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{name} must be a list, not {_said(value)}")
        item = get_args(wanted)[0]
        return tuple(_value(item, each, f"{name}[{at}]") for at, each in enumerate(value))
    if get_origin(wanted) is Literal:
        if value not in (choices := get_args(wanted)):
            raise ValueError(f"{name} must be one of {', '.join(choices)}, not {_said(value)}")
        return value
    if is_dataclass(wanted):
        return typed(cast("type[Any]", wanted), value, f"{name}.")
    if type(value) is not wanted:
        raise ValueError(f"{name} must be {_NAMES[wanted]}, not {_said(value)}")
    return value


_NAMES: Mapping[type, str] = {
    str: "a text",
    int: "a whole number",
    bool: "true or false",
    float: "a number",
}


def _said(value: object) -> str:
    """Return a value as it may stand in a message; of a container only what it is."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return f"{value!r:.40}"
