"""What goes over the control channel: small messages beside which the tensors travel.

One request of a caller, C, to the server, S; the carrier is the process that S keeps for C:

    C -> S  Ask        which tensors are to come
    S -> C  Proceed    S has room, its carrier receives: C sends the tensors, as one message
    S -> C  Answer     which tensors are to come back, as one message

or ``Failure`` in the place of ``Proceed`` or ``Answer``; ``Cancel`` may come between. Before the
first request: ``Hello`` (C), ``Welcome`` (S), any number of ``Rendezvous`` (both), ``Ready`` (S).
S and the carrier speak in the same way; ``Transfer`` and ``Transferred`` are theirs alone.
"""

from dataclasses import dataclass
from typing import TypeAlias


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
