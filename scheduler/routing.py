"""Which version of a model a request goes to: by number, by label, or by its share of them all.

Pure: a version is a name here, and the same key gives the same version in every process.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scheduler.types import ModelSpec

MAX_KEY_CHARS = 1024


@dataclass(frozen=True, slots=True)
class Part:
    """One side of a split: its name (a label, or the version itself), version and weight above 0.

    The name is what a request's key is drawn by: when a label moves to another version, the same
    keys move with it.
    """

    name: str
    version: str
    weight: float


@dataclass(frozen=True, slots=True)
class ShadowRoute:
    """Which version gets a copy of a ``share`` (0 to 1) of the requests, and what a copy may use.

    Beyond ``max_in_flight`` copies at once there are none; each has ``timeout_s`` seconds.
    """

    version: str
    share: float = 0.1
    max_in_flight: int = 1
    timeout_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Routes:
    """Who answers the requests to one model; versions that are not served are passed over.

    ``default`` answers what names no version ("": the one loaded last), unless there is a split.
    """

    default: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    split: tuple[Part, ...] = ()
    shadow: ShadowRoute | None = None


def pick(parts: Sequence[Part], model: str, key: str) -> Part:
    """Return the part of ``parts`` that the requests with ``key`` belong to.

    Weighted rendezvous hashing: the weights are the shares of all keys, and when one of them grows
    keys move to that part only, none between the others.
    """
    return min(parts, key=lambda part: _distance(part, model, key))


def _distance(part: Part, model: str, key: str) -> float:
    text = f"{model}\0{part.name}\0{key}".encode("utf-8", "surrogatepass")
    drawn = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
    return -math.log((drawn + 0.5) / 2**64) / part.weight  # the first of exponential clocks


def alike(one: ModelSpec, other: ModelSpec) -> bool:
    """Return whether each takes the other's requests and gives answers of the same form."""
    return one.inputs == other.inputs and one.outputs == other.outputs
