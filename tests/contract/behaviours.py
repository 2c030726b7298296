"""What a request may meet, in one list: the parity suite asks each of every wire."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from backends.fake import FakeBackend
from scheduler.errors import Code, ServingError
from scheduler.types import Batch, InferRequest, ModelSpec
from tests.contract.every_wire import Asker, Outcome
from tests.fixtures.requests import DENSE, LENGTHS, VALUES, random_request

MAX_ROWS = 100
MAX_BYTES = 64 * 2**20
JSON_FORMS = ("JSON", "OIP JSON")

Make: TypeAlias = Callable[[ModelSpec], InferRequest | bytes]


@dataclass(frozen=True)
class Behaviour:
    """One request, and what must come of it.

    ``code`` None: scores. ``same_words``: the message is the same on every wire; else ``why``
    says why each has its own. ``fails_with`` is what the backend raises. ``not_in`` are the forms
    that cannot carry such a request, or treat it as ``why`` says.
    """

    name: str
    make: Make
    code: Code | None = None
    same_words: bool = True
    why: str = ""
    model: str = ""
    fails_with: Exception | None = None
    not_in: tuple[str, ...] = field(default=())

    async def ask(self, asker: Asker, fake: FakeBackend) -> Outcome:
        """Ask over one wire."""
        asked = self.make(fake.spec)
        healthy = fake.before_run
        if self.fails_with is not None:
            fake.before_run = _raising(self.fails_with)
        try:
            return await _answer(asker, asked, self.model)
        finally:
            fake.before_run = healthy


def _answer(asker: Asker, asked: InferRequest | bytes, model: str) -> Awaitable[Outcome]:
    return asker.ask_bytes(asked) if isinstance(asked, bytes) else asker.ask(asked, model)


def _raising(error: Exception) -> Callable[[Batch], None]:
    def fail(_: Batch) -> None:
        raise error

    return fail


def rows(count: int) -> Make:
    """Make a request of ``count`` rows."""
    return lambda spec: random_request(spec, count, seed=count)


def changed(name: str, index: int, value: float) -> Make:
    """Make a request with one entry changed."""

    def make(spec: ModelSpec) -> InferRequest:
        request = random_request(spec, rows=4, seed=2)
        array = request.inputs[name].copy()
        array.flat[index] = value
        return replace(request, inputs={**request.inputs, name: array})

    return make


def narrow(spec: ModelSpec) -> InferRequest:
    """Make a request with too few dense features."""
    request = random_request(spec, rows=4, seed=2)
    return replace(request, inputs={**request.inputs, DENSE: request.inputs[DENSE][:, :2].copy()})


OWN_FIELDS = "each protocol names its own fields"
OWN_FORMAT = "each format says what is wrong with its own bytes"
OWN_LIMIT = "each transport names its own setting, and JSON has a lower limit"
NO_NAN = "JSON has no NaN: refused there, passed as bits elsewhere"
BY_LISTS = "row-wise lists carry no lengths"

BEHAVIOURS = (
    Behaviour("1 row", rows(1)),
    Behaviour("100 rows, larger than a batch", rows(MAX_ROWS)),
    Behaviour("no rows", rows(0)),
    Behaviour("a model that is not served", rows(1), Code.MODEL_NOT_FOUND, model="nope"),
    Behaviour("more rows than a request may have", rows(MAX_ROWS + 1), Code.INVALID_REQUEST),
    Behaviour("an id past its table", changed(VALUES, 3, 1000), Code.INVALID_REQUEST),
    Behaviour("a negative id", changed(VALUES, 0, -1), Code.INVALID_REQUEST),
    Behaviour("too few dense features", narrow, Code.INVALID_REQUEST, False, OWN_FIELDS),
    Behaviour(
        "lengths that do not add up", changed(LENGTHS, 0, 9), Code.INVALID_REQUEST,
        False, f"{OWN_FIELDS}; {BY_LISTS}", not_in=("HTTP/1.1 JSON", "HTTP/3 JSON"),
    ),
    Behaviour("NaN in a dense feature", changed(DENSE, 0, np.nan), None, True, NO_NAN,
              not_in=tuple(f"{t} {form}" for t in ("HTTP/1.1", "HTTP/3") for form in JSON_FORMS)),
    Behaviour("bytes of no format", lambda _: b"{\xff", Code.INVALID_REQUEST, False, OWN_FORMAT),
    Behaviour("a body above the limit", lambda _: bytes(MAX_BYTES + 1), Code.PAYLOAD_TOO_LARGE,
              False, OWN_LIMIT),
    *(
        Behaviour(
            f"the model answers {code.value}", rows(1), code,
            fails_with=ServingError(code, "because"),
        )
        for code in Code
    ),
    Behaviour("the model raises", rows(1), Code.INTERNAL, fails_with=ValueError("secret")),
)  # fmt: skip
