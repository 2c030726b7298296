"""What numbers in options may be."""

from typing import NamedTuple


class Range(NamedTuple):
    """The least and the greatest value, both allowed."""

    least: float
    greatest: float


PORTS = Range(0, 65_535)
# Above a day no clock is one, and the kernel's overflows.
SECONDS = Range(0.001, 86_400)
BYTES = Range(1, 2**40)
COUNTS = Range(1, 65_535)


def check_range(name: str, value: float, allowed: Range) -> None:
    """Raise ValueError, which names the option and its value, for one outside ``allowed``."""
    if not allowed.least <= value <= allowed.greatest:
        raise ValueError(f"{name} must be {allowed.least} to {allowed.greatest}, got {value}")


def check_buffer(max_buffered_bytes: int, max_request_bytes: int) -> None:
    """Raise ValueError for a buffer that could not hold one whole body."""
    if not max_request_bytes <= max_buffered_bytes <= BYTES.greatest:
        raise ValueError(
            f"max_buffered_bytes must be max_request_bytes ({max_request_bytes}) "
            f"to {BYTES.greatest}, got {max_buffered_bytes}"
        )
