"""Which requests are in a sample."""

import random


def in_sample(ratio: float) -> bool:
    """Return True for a share of ``ratio`` (0 to 1) of all calls."""
    return random.getrandbits(32) < ratio * 2**32
