"""What becomes of an id that its table has no row for, as a text that manifests and flags have.

``reject``: the request is refused. ``zero``: the id is left out, it adds nothing to the pooled
sum. ``default_row:ROW``: it is looked up in that row. ``clamp``: below 0 it becomes 0, above the
last row the last row. ``hash:murmur3:SEED``: every id of the table, in range or not, becomes its
hash modulo the rows. ``hash:modulo:SEED``: every id becomes id + SEED modulo the rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from scheduler.errors import first_of

Name: TypeAlias = Literal["reject", "zero", "default_row", "clamp", "hash"]
Function: TypeAlias = Literal["murmur3", "modulo"]

_KNOWN = "reject, zero, clamp, default_row:ROW, hash:murmur3:SEED or hash:modulo:SEED"
_MOST_SEED = 2**32 - 1
# The hash has 32 bits: rows beyond them would never be looked up.
_MOST_MURMUR3_ROWS = 2**32
OTHERS = "*"


@dataclass(frozen=True, slots=True)
class Policy:
    """One table's policy; ``row`` is default_row's, ``function`` and ``seed`` are hash's."""

    name: Name = "reject"
    row: int = 0
    function: Function = "murmur3"
    seed: int = 0

    @property
    def text(self) -> str:
        """The policy as manifests and flags have it."""
        if self.name == "hash":
            return f"{self.name}:{self.function}:{self.seed}"
        return f"{self.name}:{self.row}" if self.name == "default_row" else self.name


REJECT = Policy()


def parse_policy(text: object, rows: int) -> Policy:
    """Return the policy that ``text`` says, for a table of ``rows``. Raises ValueError."""
    if not isinstance(text, str):
        raise ValueError(f"{text!r:.40} is no text; policies are {_KNOWN}")  # noqa: TRY004
    name, _, rest = text.partition(":")
    if name == "hash":
        return _hash(text, rest, rows)
    if name == "default_row":
        row = _number(text, rest, "a row")
        if row >= rows:
            raise ValueError(f"{text!r}: the table has {rows} rows (0..{rows - 1})")
        return Policy("default_row", row=row)
    for known in ("reject", "zero", "clamp"):
        if text == known:
            return Policy(known)
    raise ValueError(f"{text!r:.80} is unknown; policies are {_KNOWN}")


def _hash(text: str, rest: str, rows: int) -> Policy:
    function, colon, seed_text = rest.partition(":")
    if function not in get_args(Function):
        raise ValueError(f"{text!r:.80}: functions are {', '.join(get_args(Function))}")
    if not colon:
        raise ValueError(f"{text!r} lacks its seed, which is the training side's: {text}:SEED")
    seed = _number(text, seed_text, "a seed")
    if seed > _MOST_SEED:
        raise ValueError(f"{text!r}: the seed is above {_MOST_SEED}")
    if function == "modulo":
        return Policy("hash", function="modulo", seed=seed)
    if rows > _MOST_MURMUR3_ROWS:
        raise ValueError(f"{text!r}: the table has {rows} rows, the hash only 2**32 values")
    return Policy("hash", function="murmur3", seed=seed)


def _number(text: str, digits: str, what: str) -> int:
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > 19:
        raise ValueError(f"{text!r:.80}: {digits!r:.40} is not {what}, a number of 0 or more")
    return int(digits)


def choose_policies(tables: Mapping[str, int], chosen: Sequence[str]) -> dict[str, Policy]:
    """Return the policies that ``chosen`` texts, ``FEATURE=POLICY`` each, give some ``tables``.

    ``tables`` has the rows of each feature's. The feature ``*`` stands for all that no text names.
    Raises ValueError.
    """
    policies: dict[str, Policy] = {}
    given: dict[str, str] = {}
    for text in chosen:
        feature, equals, policy = text.rpartition("=")
        if not equals or not feature:
            raise ValueError(f"{text!r:.80} is not FEATURE=POLICY; policies are {_KNOWN}")
        if feature in given:
            raise ValueError(f"{feature!r:.80} is given twice")
        if feature != OTHERS and feature not in tables:
            raise ValueError(f"no feature {feature!r:.80}; the model has {first_of(tables)}")
        given[feature] = policy
    for feature, rows in tables.items():
        wanted = given.get(feature, given.get(OTHERS))
        if wanted is not None:
            policies[feature] = _of_feature(feature, wanted, rows)
    return policies


def _of_feature(feature: str, text: str, rows: int) -> Policy:
    try:
        return parse_policy(text, rows)
    except ValueError as error:
        raise ValueError(f"feature {feature!r}: {error}") from error


def shown(policies: Mapping[str, Policy]) -> str:
    """Return ``policies`` as the option ids takes them, those that reject in one word."""
    others = [f"{name}={policy.text}" for name, policy in policies.items() if policy != REJECT]
    return ",".join([*others, *([f"{OTHERS}=reject"] if len(others) < len(policies) else [])])
