"""The control channel's messages <-> bytes. No sockets here and no clock.

version 1 byte | kind 1 byte | body bytes 4 bytes, big-endian | body, one JSON object
"""

import base64
import binascii
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from scheduler.errors import ServingError, invalid
from transports.collective.messages import (
    Answer,
    Ask,
    Cancel,
    Failure,
    Hello,
    Message,
    Proceed,
    Ready,
    Rendezvous,
    TensorHead,
    Transfer,
    Transferred,
    Welcome,
)

VERSION = 1
# A model of thousands of features, each with a name, in one request; nothing else is near it.
MAX_BODY_BYTES = 256 << 10
_HEAD = struct.Struct("!BBI")
# Whole numbers beyond it are no number of bytes or of a request; Python would read any.
_MOST = (1 << 63) - 1
# A message's kind on the wire is its place here, from 1.
_KINDS: tuple[type[Message], ...] = (
    Hello, Welcome, Rendezvous, Ready, Ask, Proceed, Cancel, Answer, Failure, Transfer, Transferred,
)  # fmt: skip


def encode(message: Message) -> bytes:
    """Return ``message`` as bytes. Raises ServingError (INVALID_REQUEST) if it is too long."""
    values = {field.name: getattr(message, field.name) for field in fields(message)}
    body = json.dumps(values, default=_plain, separators=(",", ":")).encode()
    if len(body) > MAX_BODY_BYTES:
        raise _too_long(len(body))
    return _HEAD.pack(VERSION, _KINDS.index(type(message)) + 1, len(body)) + body


class Decoder:
    """Turn bytes, in whatever pieces they come, into messages; of no use after an error."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that ``data`` completes.

        Holds no more than one message and ``data``. Raises ServingError (INVALID_REQUEST).
        """
        self._held += data
        messages = []
        while len(self._held) >= _HEAD.size:
            version, kind, size = _HEAD.unpack_from(self._held)
            self._check(version, kind, size)
            end = _HEAD.size + size
            if len(self._held) < end:
                break
            messages.append(_decoded(_KINDS[kind - 1], bytes(self._held[_HEAD.size : end])))
            del self._held[:end]
        return messages

    def _check(self, version: int, kind: int, size: int) -> None:
        """Refuse a head before what it announces is awaited."""
        if version != VERSION:
            raise invalid(f"control message: version {version}, expected {VERSION}")
        if not 1 <= kind <= len(_KINDS):
            raise invalid(f"control message: kind {kind}, expected 1 to {len(_KINDS)}")
        if size > MAX_BODY_BYTES:
            raise _too_long(size)


def _too_long(size: int) -> ServingError:
    return invalid(f"control message: has {size} bytes, above the limit of {MAX_BODY_BYTES}")


def _plain(value: Any) -> Any:
    """Return a tensor's head or bytes in a form that JSON has."""
    if isinstance(value, TensorHead):
        return [value.name, value.datatype, value.shape]
    return base64.b64encode(value).decode()


def _decoded(kind: type[Message], body: bytes) -> Message:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise invalid(f"control message {kind.__name__}: its body is not JSON") from error
    if not isinstance(document, dict):
        raise invalid(f"control message {kind.__name__}: its body is no JSON object")
    return kind(**{field.name: _field(kind, field.name, document) for field in fields(kind)})


def _field(kind: type[Message], name: str, document: Mapping[str, Any]) -> Any:
    """Return one field as its type. What is not known is left aside: a later version's."""
    try:
        return _READERS[kind.__annotations__[name]](document[name])
    except (KeyError, TypeError, ValueError, OverflowError, binascii.Error) as error:
        raise invalid(f"control message {kind.__name__}: {name} is missing or wrong") from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    value.encode()  # refuses what JSON can write and UTF-8 cannot: half of a surrogate pair
    return value


def _whole(value: Any) -> int:
    if type(value) is not int or abs(value) > _MOST:  # True is an int, too
        raise TypeError
    return value


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _seconds(value: Any) -> float | None:
    if value is not None and type(value) not in (int, float):
        raise TypeError
    return None if value is None else float(value)


def _bytes(value: Any) -> bytes:
    return base64.b64decode(_text(value), validate=True)


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(map(_text, _items(value)))


def _tensors(value: Any) -> tuple[TensorHead, ...]:
    return tuple(map(_tensor, _items(value)))


def _tensor(value: Any) -> TensorHead:
    name, datatype, shape = _items(value)
    return TensorHead(_text(name), _text(datatype), tuple(map(_whole, _items(shape))))


def _items(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError
    return value


_READERS: Mapping[Any, Callable[[Any], Any]] = {
    str: _text,
    int: _whole,
    bool: _truth,
    bytes: _bytes,
    float | None: _seconds,
    tuple[str, ...]: _texts,
    tuple[TensorHead, ...]: _tensors,
}
