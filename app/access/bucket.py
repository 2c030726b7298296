"""A token bucket, without a clock of its own."""


class Bucket:
    """Let ``burst`` through at once and ``rate`` a second from then on.

    One that is larger than ``burst`` needs a full bucket, and is paid off before the next.
    """

    __slots__ = ("_burst", "_rate", "at_s", "level")

    def __init__(self, rate: float, burst: float, now_s: float) -> None:
        self._rate = rate
        self._burst = burst
        self.level = burst  # at ``at_s``, when it was last looked at
        self.at_s = now_s

    @property
    def full_s(self) -> float:
        """When it will be full."""
        return self.at_s + (self._burst - self.level) / self._rate

    def put(self, level: float, at_s: float) -> None:
        """Be as full as another left it."""
        self.level, self.at_s = level, at_s

    def fill(self, now_s: float) -> None:
        """Be full."""
        self.put(self._burst, now_s)

    def wait_s(self, amount: float, now_s: float) -> float:
        """Return in how many seconds ``amount`` may be taken, 0.0 for now."""
        # A clock that steps back gives nothing and takes nothing.
        passed_s = max(0.0, now_s - self.at_s)
        self.level = min(self._burst, self.level + passed_s * self._rate)
        self.at_s = now_s
        return max(0.0, (min(amount, self._burst) - self.level) / self._rate)

    def take(self, amount: float) -> None:
        """Take ``amount``, which ``wait_s`` has just allowed."""
        self.level -= amount
