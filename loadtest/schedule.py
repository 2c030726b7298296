"""When to send, computed before the run: arrivals that wait for no answer."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Times: TypeAlias = npt.NDArray[np.float64]


class ScheduleError(ValueError):
    """The arrivals asked for make no sense; the text says why."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How requests arrive: ``kind``, and what follows its colon on the command line."""

    kind: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.detail}" if self.detail else self.kind

    def times(self, rate: float, seconds: float, seed: int) -> Times:
        """Return ascending send times (seconds from the start), below ``seconds``.

        ``rate`` is in requests a second. Raises ScheduleError.
        """
        if seconds <= 0 or rate <= 0:
            raise ScheduleError(f"{self}: rate and seconds must be above 0, got {rate}, {seconds}")
        return KINDS[self.kind](self.detail, rate, seconds, seed)


def parse(text: str) -> Arrivals:
    """Read constant, poisson, burst:SIZE, step:SHARE+SHARE... or trace:FILE.

    Raises ScheduleError.
    """
    kind, _, detail = text.partition(":")
    if kind not in KINDS:
        raise ScheduleError(f"no arrivals {kind!r}; there are {', '.join(KINDS)}")
    if (kind in ("constant", "poisson")) == bool(detail):
        raise ScheduleError(f"{text}: write constant, poisson, burst:50, step:0.5+1+2, trace:FILE")
    return Arrivals(kind, detail)


def _constant(detail: str, rate: float, seconds: float, seed: int) -> Times:
    return np.arange(max(1, round(rate * seconds))) / rate


def _poisson(detail: str, rate: float, seconds: float, seed: int) -> Times:
    # Poisson arrivals whose number is given are uniform: the offered rate is exact.
    rng = np.random.default_rng(seed)
    return np.sort(rng.uniform(0.0, seconds, max(1, round(rate * seconds))))


def _burst(detail: str, rate: float, seconds: float, seed: int) -> Times:
    size = _number(detail, "burst")
    count = max(1, round(rate * seconds))
    return np.floor(np.arange(count) / size) * (size / rate)


def _step(detail: str, rate: float, seconds: float, seed: int) -> Times:
    shares = [_number(share, "step") for share in detail.split("+")]
    each_s = seconds / len(shares)
    parts = [
        number * each_s + _poisson("", rate * share, each_s, seed + number)
        for number, share in enumerate(shares)
    ]
    return np.concatenate(parts)


def trace_rate(detail: str) -> float:
    """Return the mean rate of the trace in the file ``detail``. Raises ScheduleError."""
    recorded = _recorded(detail)
    return float((len(recorded) - 1) / recorded[-1])


def _trace(detail: str, rate: float, seconds: float, seed: int) -> Times:
    # A round of n requests lasts n mean gaps, so that the last and the first have one between.
    recorded = _recorded(detail) * (trace_rate(detail) / rate)
    period_s = len(recorded) / rate
    rounds = int(np.ceil(seconds / period_s))
    times: Times = (np.arange(rounds)[:, None] * period_s + recorded).ravel()
    within: Times = times[times < seconds]
    return within


def _recorded(detail: str) -> Times:
    """Return the times in the file, ascending from 0."""
    try:
        with Path(detail).open(encoding="utf-8") as file:
            recorded: Times = np.sort(np.loadtxt(file, np.float64, ndmin=1))
    except OSError as error:
        raise ScheduleError(f"trace {detail} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ScheduleError(f"trace {detail}: one time in seconds a line: {error}") from error
    if len(recorded) < 2 or not np.isfinite(recorded).all() or recorded[0] == recorded[-1]:
        raise ScheduleError(f"trace {detail}: needs two different times at least")
    recorded -= recorded[0]
    return recorded


def _number(text: str, kind: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.0 < number < np.inf:
        raise ScheduleError(f"{kind}: expected a number above 0, got {text!r}")
    return number


KINDS: dict[str, Callable[[str, float, float, int], Times]] = {
    "constant": _constant,
    "poisson": _poisson,
    "burst": _burst,
    "step": _step,
    "trace": _trace,
}
