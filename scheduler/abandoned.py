"""Who had a request that was cancelled: the cancellation itself carries the version.

No class of its own: ``asyncio.timeout`` knows its cancellations by their very type.
"""

import asyncio

_VERSION = "narsil_version"


def note_version(cancelled: asyncio.CancelledError, version: str) -> None:
    """Note that ``version`` had the request; who is told of the cancellation can read it."""
    vars(cancelled)[_VERSION] = version


def version_noted(cancelled: asyncio.CancelledError) -> str:
    """Return the version that had the request, "" if none had it yet."""
    version: str = vars(cancelled).get(_VERSION, "")
    return version
