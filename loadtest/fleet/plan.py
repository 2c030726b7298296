"""What a fleet is, and what becomes of its requests: the simulation's nouns."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from loadtest.fleet.box import Box


@dataclass(frozen=True, slots=True)
class Death:
    """A server that is dead from ``at_s`` on for ``down_s`` seconds."""

    at_s: float
    server: int
    down_s: float


@dataclass(frozen=True, slots=True)
class Hold:
    """A lane of a server that does something else for ``seconds``, such as exchanging rows."""

    at_s: float
    server: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Plan:
    """A fleet of ``shards`` times ``replicas`` boxes; a request needs an answer of every shard.

    ``balancers`` of kind ``balancer`` share the requests at random and know nothing of each other.
    A request unanswered after ``hedge_s`` is sent to another replica too. One whose server dies is
    sent again, ``retries`` times at most; a balancer goes on sending to a dead server for
    ``detect_s``. ``slower`` are factors of the first servers' service times. Server number
    ``shard * replicas + replica``.
    """

    box: Box
    replicas: int = 1
    shards: int = 1
    balancer: str = "power of two"
    balancers: int = 1
    hedge_s: float = math.inf
    retries: int = 1
    detect_s: float = 0.0
    slower: tuple[float, ...] = ()
    deaths: tuple[Death, ...] = ()
    holds: tuple[Hold, ...] = ()


class Worked(Protocol):
    """What a server has done: lanes' and loop's seconds, batches, and requests in them."""

    busy_s: float
    loop_s: float
    batches: int
    batched: int


@dataclass(slots=True)
class Result:
    """What became of every request; ``latencies_s`` are of those answered, in order of arrival.

    ``nan`` there stands for one that was not. ``hedged``, ``retried`` and ``wasted`` (answers that
    came second) count parts.
    """

    seconds: float
    latencies_s: list[float] = field(default_factory=list)
    arrived: int = 0
    answered: int = 0
    refused: int = 0
    failed: int = 0
    hedged: int = 0
    retried: int = 0
    wasted: int = 0
    busy_s: float = 0.0
    loop_s: float = 0.0
    batches: int = 0
    batched: int = 0

    def add(self, server: Worked) -> None:
        """Add what ``server`` has done."""
        self.busy_s += server.busy_s
        self.loop_s += server.loop_s
        self.batches += server.batches
        self.batched += server.batched

    @property
    def left(self) -> int:
        """Requests that have met none of the three ends."""
        return self.arrived - self.answered - self.refused - self.failed

    def percentile_ms(self, percent: float) -> float:
        """Return what ``percent`` of the answered did not exceed."""
        known = np.asarray(self.latencies_s)
        known = known[~np.isnan(known)]
        return float(np.percentile(known, percent) * 1e3) if len(known) else math.nan

    @property
    def mean_ms(self) -> float:
        """Return the mean latency of the answered."""
        return float(np.nanmean(self.latencies_s) * 1e3) if self.answered else math.nan

    @property
    def requests_a_batch(self) -> float:
        """Return how many requests shared a batch, on average."""
        return self.batched / self.batches if self.batches else math.nan


def poisson(rate: float, seconds: float, seed: Sequence[int]) -> list[float]:
    """Return ascending arrival times: gaps are exponential, so their number varies."""
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(1 / rate, int(rate * seconds + 6 * math.sqrt(rate * seconds) + 20))
    times = np.cumsum(gaps)
    arrivals: list[float] = times[times < seconds].tolist()
    return arrivals
