"""What goes over the control channel: small messages beside which the tensors travel.

    version 1 byte | kind 1 byte | body bytes 4 bytes, big-endian | body, one JSON object

One request of a caller, C, to the server, S; the carrier is the process that S keeps for C:

    C -> S  Ask        which tensors are to come
    S -> C  Proceed    S has room, its carrier receives: C sends the tensors, as one message
    S -> C  Answer     which tensors are to come back, as one message

or ``Failure`` in the place of ``Proceed`` or ``Answer``; ``Cancel`` may come between. Before the
first request: ``Hello`` (C), ``Welcome`` (S), any number of ``Rendezvous`` (both), ``Ready`` (S).
S and the carrier speak in the same way; ``Transfer`` and ``Transferred`` are theirs alone.

No sockets here and no clock.
"""

import base64
import binascii
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from scheduler.errors import ServingError, invalid

VERSION = 1
# A model of thousands of features, each with a name, in one request; nothing else is near it.
MAX_BODY_BYTES = 256 << 10
_HEAD = struct.Struct("!BBI")
# Whole numbers beyond it are no number of bytes or of a request; Python would read any.
_MOST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class TensorHead:
    """One tensor on its way; ``datatype`` is one of the Open Inference Protocol's."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Hello:
    """A caller comes, with its API key if it has one."""

    credential: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """The caller may meet the carrier over ``backend`` (gloo, nccl)."""

    backend: str


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """One rank sets ``key`` of the store in which both look each other's address up."""

    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Ready:
    """Both ranks have exchanged a first tensor."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Request number ``number`` of the connection; ``timeout_s`` None is none."""

    number: int
    tensors: tuple[TensorHead, ...]
    model: str
    version: str
    request_id: str
    key: str
    outputs: tuple[str, ...]
    priority: int
    timeout_s: float | None
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class Proceed:
    """The tensors of request ``number`` are awaited."""

    number: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody waits for the answer to ``number`` any more."""

    number: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The scores of request ``number`` are about to be sent."""

    number: int
    tensors: tuple[TensorHead, ...]
    model: str
    version: str


@dataclass(frozen=True, slots=True)
class Failure:
    """Request ``number`` has no scores (0: the connection ends); ``code`` is a Code's value."""

    number: int
    code: str
    detail: str
    retry_after_s: float | None


@dataclass(frozen=True, slots=True)
class Transfer:
    """The carrier is to receive, or send, the first ``size_bytes`` of the arena."""

    receive: bool
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Transferred:
    """The carrier has."""


Message: TypeAlias = (
    Hello | Welcome | Rendezvous | Ready | Ask | Proceed | Cancel | Answer | Failure | Transfer
    | Transferred
)  # fmt: skip
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
