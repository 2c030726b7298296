"""A token bucket, without a clock of its own."""


class Bucket:
    """Let ``burst`` through at once and ``rate`` a second from then on.

    One that is larger than ``burst`` needs a full bucket, and is paid off before the next.
    """

    __slots__ = ("_at_s", "_burst", "_level", "_rate")

    def __init__(self, rate: float, burst: float, now_s: float) -> None:
        self._rate = rate
        self._burst = burst
        self._level = burst
        self._at_s = now_s

    def wait_s(self, amount: float, now_s: float) -> float:
        """Return in how many seconds ``amount`` may be taken, 0.0 for now."""
        # A clock that steps back gives nothing and takes nothing.
        passed_s = max(0.0, now_s - self._at_s)
        self._level = min(self._burst, self._level + passed_s * self._rate)
        self._at_s = now_s
        return max(0.0, (min(amount, self._burst) - self._level) / self._rate)

    def take(self, amount: float) -> None:
        """Take ``amount``, which ``wait_s`` has just allowed."""
        self._level -= amount
