"""What is being done, and how far a run is. It writes to stderr, and on a terminal over itself."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live

from loadtest.processes import Look


@dataclass(frozen=True, slots=True)
class Progress:
    """Whom to tell: ``doing`` what comes next, ``look`` how far a run is (None: nobody looks)."""

    doing: Callable[[str], None]
    look: Look | None = None


@contextmanager
def shown(command: str) -> Iterator[Progress]:
    """Give whom to tell while ``command`` runs."""
    if not sys.stderr.isatty():
        yield Progress(lambda text: print(f"{command}: {text} ...", file=sys.stderr, flush=True))
        return
    # Lines on stdout go around it, but only where both are the terminal.
    live = Live(
        console=Console(stderr=True), refresh_per_second=4, transient=True,
        redirect_stdout=sys.stdout.isatty(),
    )  # fmt: skip
    with live:
        now = [""]

        def doing(text: str) -> None:
            now[0] = f"{text} ..."
            live.update(now[0], refresh=True)

        def look(sent: int, answered: int, failed: int) -> None:
            live.update(
                f"{now[0]}  sent {sent:,}  answered {answered:,}  failed {failed:,}  "
                f"under way {sent - answered - failed:,}"
            )

        yield Progress(doing, look)
