"""One processor for an event loop and a lane: the loop's turns stop what the lane computes."""

from collections.abc import Callable
from typing import TypeAlias

from loadtest.fleet.timeline import Timeline

# What a turn of the loop costs, in seconds, and what is to be called at its end.
Turn: TypeAlias = tuple[float, Callable[[], None]]

_NEVER = 0


class Core:
    """Give the processor to the loop while it has something to do, to the lane otherwise.

    A loop that is woken while the lane computes gets the processor after ``yield_s``, or when the
    lane is done; one that is woken while nobody has it after ``idle_s``. ``turn`` is asked for the
    loop's next turn, None if nothing is to be done; ``computed`` is called when the lane is done.
    """

    def __init__(
        self,
        timeline: Timeline,
        yield_s: float,
        idle_s: float,
        turn: Callable[[], Turn | None],
        computed: Callable[[], None],
    ) -> None:
        self._timeline = timeline
        self._yield_s = yield_s
        self._idle_s = idle_s
        self._awake = False  # whether the processor is the caller's, who has just used it
        self._turn = turn
        self._computed = computed
        self._events = _NEVER  # counted, so that one that was called off is known by its number
        self.clear()

    def clear(self) -> None:
        """Call off whatever is under way."""
        self._lane_ends = self._turn_ends = self._turn_begins = _NEVER
        self._left_s: float | None = None  # what the lane still has to compute
        self._since_s = 0.0

    def compute(self, seconds: float) -> None:
        """Let the lane, which has nothing to do, compute for ``seconds``."""
        self._left_s = seconds
        if not self._turn_ends:
            self._go_on()

    def wake(self) -> None:
        """Tell the loop that there is something to do."""
        if self._turn_ends:
            return
        if self._left_s is None and (self._awake or not self._idle_s):
            self._take_turn()
        elif not self._turn_begins:
            delay_s = self._idle_s if self._left_s is None else self._yield_s
            self._turn_begins = self._after(delay_s, self._waited)

    def _after(self, seconds: float, step: Callable[[int], None]) -> int:
        self._events += 1
        self._timeline.at(self._timeline.now_s + seconds, step, self._events)
        return self._events

    def _waited(self, event: int) -> None:
        if event == self._turn_begins:
            self._take_turn()

    def _take_turn(self) -> None:
        self._turn_begins = _NEVER
        turn = self._turn()
        if turn is None:
            self._go_on()
            return
        if self._lane_ends and self._left_s is not None:
            self._left_s -= self._timeline.now_s - self._since_s
            self._lane_ends = _NEVER
        seconds, then = turn
        self._turn_ends = self._after(seconds, lambda event: self._turned(event, then))

    def _turned(self, event: int, then: Callable[[], None]) -> None:
        if event == self._turn_ends:
            then()
            self._turn_ends = _NEVER
            self._take_turn()

    def _go_on(self) -> None:
        if self._left_s is not None and not self._lane_ends:
            self._since_s = self._timeline.now_s
            self._lane_ends = self._after(max(0.0, self._left_s), self._done)

    def _done(self, event: int) -> None:
        if event == self._lane_ends:
            self._lane_ends = _NEVER
            self._left_s = None
            self._awake = True
            self._computed()
            self._awake = False
