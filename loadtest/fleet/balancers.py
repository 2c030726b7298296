"""Which replica a load balancer sends to. Each balancer knows only of what it sent itself."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from loadtest.fleet.draws import Draws, uniform


class Balancer(Protocol):
    """Chooses among replicas by their numbers."""

    def choose(self, among: Sequence[int]) -> int:
        """Return one of ``among``, which is not empty."""

    def sent(self, replica: int) -> None:
        """Note a request that is under way."""

    def done(self, replica: int) -> None:
        """Note that it is no more."""


class RoundRobin:
    """One after the other."""

    def __init__(self, replicas: int, seed: Sequence[int]) -> None:
        self._turn = Draws(uniform, seed).below(replicas)  # no two balancers in step

    def choose(self, among: Sequence[int]) -> int:
        """Return the next."""
        self._turn += 1
        return among[self._turn % len(among)]

    def sent(self, replica: int) -> None:
        """Note nothing."""

    def done(self, replica: int) -> None:
        """Note nothing."""


class Random:
    """Any."""

    def __init__(self, replicas: int, seed: Sequence[int]) -> None:
        del replicas
        self._draws = Draws(uniform, seed)

    def choose(self, among: Sequence[int]) -> int:
        """Return any."""
        return among[self._draws.below(len(among))]

    def sent(self, replica: int) -> None:
        """Note nothing."""

    def done(self, replica: int) -> None:
        """Note nothing."""


class _Counting:
    def __init__(self, replicas: int, seed: Sequence[int]) -> None:
        self._draws = Draws(uniform, seed)
        self._out = [0] * replicas

    def sent(self, replica: int) -> None:
        """Count it."""
        self._out[replica] += 1

    def done(self, replica: int) -> None:
        """Count it no more."""
        self._out[replica] -= 1


class PowerOfTwo(_Counting):
    """The one of two, drawn at random, with fewer requests under way."""

    def choose(self, among: Sequence[int]) -> int:
        """Return the less busy of two."""
        first = self._draws.below(len(among))
        second = self._draws.below(len(among) - 1) if len(among) > 1 else first
        one, other = among[first], among[second + (second >= first) * (len(among) > 1)]
        return one if self._out[one] <= self._out[other] else other


class LeastOutstanding(_Counting):
    """The one with the fewest under way; of several such, the first from a random place on."""

    def choose(self, among: Sequence[int]) -> int:
        """Return the least busy."""
        start, out = self._draws.below(len(among)), self._out
        turned = [*among[start:], *among[:start]]
        return min(turned, key=out.__getitem__)


BALANCERS: Mapping[str, Callable[[int, Sequence[int]], Balancer]] = {
    "round robin": RoundRobin,
    "random": Random,
    "power of two": PowerOfTwo,
    "least outstanding": LeastOutstanding,
}
