"""What a schedule asks for, and what becomes of it."""

import asyncio
import random
from dataclasses import dataclass, field

import numpy as np

from scheduler.errors import Code, ServingError
from scheduler.types import Array, Batch, InferRequest, InferResponse

# A request's id is its number and, if it is faulty, how: a batch with it in it fails that way.
FAULTS = {
    "gathering": Code.INTERNAL,
    "raises": Code.INTERNAL,
    "refuses": Code.UNSUPPORTED,
    "short": Code.INTERNAL,
    "dtype": Code.INTERNAL,
    "name": Code.INTERNAL,
}
SIZES = [1, 1, 1, 2, 2, 3, 4, 5, 9, 14]
TIMEOUTS_S = [1 / 64, 1 / 16, 1 / 4, 1.0, np.inf, np.inf, np.inf, np.inf]
OUTPUTS: list[tuple[str, ...]] = [(), (), ("default",), ("double",), ("double", "default")]

# One row, for all time: the number of its request and its place in it, also its first feature.
Row = int
ROWS = 32  # a request has fewer


def rows_of(request: InferRequest) -> tuple[Row, ...]:
    """Return which rows a backend was given in ``request``, possibly a piece of one."""
    return tuple(request.inputs["float_features"][:, 0].astype(int).tolist())


def rows_in(batch: Batch) -> tuple[Row, ...]:
    return tuple(row for request in batch.requests for row in rows_of(request))


def fault_of(request: InferRequest) -> str:
    return request.id.partition(" ")[2]


def ids_by_row(request: InferRequest) -> list[int]:
    counts: list[int] = request.inputs["id_list_features.lengths"].sum(axis=0).tolist()
    return counts


@dataclass(eq=False, slots=True)
class Asked:
    """One request and its fate; moments are counted by the journal, in the order of events."""

    number: int
    request: InferRequest
    sound: bool = True  # False: it must be refused as invalid
    target: str | None = None  # the version it was for when it was asked
    asked_at: float = np.inf
    asked_s: float = np.inf
    found_waiting: tuple[int, int] = (0, 0)  # rows and bytes
    waited: bool = False  # infer did not return at once
    taken_at: float = np.inf
    cancelled_at: float = np.inf
    answered_at: float = np.inf
    answered_s: float = np.inf
    forecast: bool = False  # the model could know by then how long a batch takes
    task: asyncio.Task[InferResponse] = field(init=False)

    @property
    def deadline_s(self) -> float:
        return self.asked_s + self.request.timeout_s

    @property
    def rows(self) -> range:
        return range(self.number * ROWS, self.number * ROWS + self.request.rows)

    @property
    def group(self) -> bool:
        return "bias" in self.request.inputs

    @property
    def error(self) -> ServingError | None:
        """The error it ended with, None for an answer; anything but a ServingError is a bug."""
        error = self.task.exception()
        assert error is None or isinstance(error, ServingError), f"{self}: {error!r}"
        return error

    @property
    def code(self) -> Code | None:
        return self.error.code if self.error else None

    @property
    def admitted(self) -> bool:
        """Whether the queue took it: then it left by a lane or was counted as dropped."""
        refused = (Code.OVERLOADED, Code.PAYLOAD_TOO_LARGE, Code.INVALID_REQUEST)
        if self.asked_s == np.inf or self.request.rows == 0:
            return False
        if self.waited or self.task.cancelled():
            return self.waited
        return self.code not in (*refused, Code.MODEL_NOT_FOUND, Code.UNAVAILABLE)

    @property
    def outcome(self) -> str:
        if self.task.cancelled():
            return "cancelled"
        return self.code.name if self.code else "answered"

    def __str__(self) -> str:
        return f"request {self.request.id}"


class Requests:
    """Draw requests at random, all different, numbered in order."""

    def __init__(self, dice: random.Random, max_batch_ids: int, max_request_rows: int) -> None:
        self._dice = dice
        self._numbers = np.random.default_rng(dice.randrange(1 << 30))
        self._max_batch_ids = max_batch_ids
        self._max_request_rows = max_request_rows
        self._fault_share = dice.choice([0.0, 0.05, 0.2])

    def draw(self, number: int, model: str, version: str) -> Asked:
        """Return request ``number``; invalid, faulty, in a hurry, larger than a batch or none."""
        dice = self._dice
        rows = dice.choice(SIZES) if dice.random() > 0.02 else 0
        fault = dice.choice(list(FAULTS)) if dice.random() < self._fault_share else ""
        request = InferRequest(
            model, rows, self._inputs(number, rows), id=f"{number} {fault}".strip(),
            version=version, timeout_s=dice.choice(TIMEOUTS_S),
            priority=dice.choice([0, 1, 1, 1, 2, 3]), outputs=dice.choice(OUTPUTS),
        )  # fmt: skip
        sound = self._is_sound(request)
        if rows and dice.random() < 0.03:
            request.inputs["id_list_features.lengths"][0, 0] = -1
            sound = False
        return Asked(number, request, sound)

    def _inputs(self, number: int, rows: int) -> dict[str, Array]:
        features = self._numbers.integers(0, 100, (rows, 3)).astype(np.float32)
        features[:, 0] = number * ROWS + np.arange(rows)
        lengths = self._numbers.integers(0, 4, (2, rows), np.int64)
        inputs: dict[str, Array] = {
            "float_features": features,  # whole numbers add up to the same in any batch
            "id_list_features.lengths": lengths,
            "id_list_features.values": self._numbers.integers(0, 1000, int(lengths.sum())),
        }
        if self._dice.random() < 0.3:
            inputs["bias"] = np.arange(rows, dtype=np.float32)
        return inputs

    def _is_sound(self, request: InferRequest) -> bool:
        too_many = request.rows > self._max_request_rows
        return not too_many and max(ids_by_row(request), default=0) <= self._max_batch_ids


def faulty(batch: Batch) -> str:
    """Return the first fault in ``batch``."""
    return next(filter(None, map(fault_of, batch.requests)), "")
