"""What a schedule is played under: options and risks, drawn at random.

All times, here and elsewhere, are sums of powers of two: rounding never fires a timer too early,
for which a clock that stands still would fire it again and again.
"""

import random
from dataclasses import dataclass

from scheduler.options import SchedulerOptions

FOREVER_S = float(1 << 20)


@dataclass(frozen=True, slots=True)
class Risks:
    """How often what happens, as a share of runs (of loads)."""

    whole: float  # a batch of several fails, whoever is in it
    lost: float  # the device
    dies: float  # the lane's thread ends
    load: float


def draw_options(dice: random.Random) -> SchedulerOptions:
    """Return options that make every bound matter."""
    mode = dice.choice(["batch", "batch", "batch", "worker", "inline"])
    return SchedulerOptions(
        mode=mode,
        max_queue_rows=dice.choice([16, 24, 40]),
        max_queue_bytes=dice.choice([800, 1 << 28, 1 << 28]),
        max_batch_ids=dice.choice([5, 8, 16, 1 << 18]),
        max_delay_s=dice.choice([0.0, 0.0, 1 / 64]) if mode == "batch" else 0.0,
        ageing_s=dice.choice([1 / 64, 1 / 2]),
        refuse_late=dice.random() < 0.7,
        inline_below_s=dice.choice([0.0, 0.001, 1.0]),
        watchdog_s=dice.choice([0.0, 1 / 4, 32.0, 32.0]),
        on_failure=dice.choice(["report", "reload"]),
    )


def draw_risks(dice: random.Random) -> Risks:
    """Return risks; in most schedules nothing dies."""
    return Risks(
        whole=dice.choice([0.0, 0.2]),
        lost=dice.choice([0.0] * 5 + [0.05]),
        dies=dice.choice([0.0] * 8 + [0.05]),
        load=dice.choice([0.0, 0.2]),
    )
