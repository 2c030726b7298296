"""How a process that we started has ended, in words."""

import signal


def how_ended(returncode: int) -> str:
    """Return ``ended with exit code 3``, or ``was killed by SIGKILL`` for a negative code."""
    if returncode >= 0:
        return f"ended with exit code {returncode}"
    try:
        return f"was killed by {signal.Signals(-returncode).name}"
    except ValueError:  # most real-time signals have no name
        return f"was killed by signal {-returncode}"
