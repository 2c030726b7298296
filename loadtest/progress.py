"""How far a run is, while it lasts; only on a terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live

from loadtest.processes import Look


@contextmanager
def shown() -> Iterator[Look | None]:
    """Give what to tell it to, or None where nobody looks. It writes to stderr."""
    if not sys.stderr.isatty():
        yield None
        return
    with Live(console=Console(stderr=True), refresh_per_second=4, transient=True) as live:
        yield lambda sent, answered, failed: live.update(
            f"sent {sent:,}  answered {answered:,}  failed {failed:,}  "
            f"under way {sent - answered - failed:,}"
        )
