"""Read what lies beside a served model's own files: its example, its catalogue."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from app.models import Served
from scheduler.companions import Companion
from scheduler.threads import run_in_thread

MAX_BYTES = 16 * 1024 * 1024


class FolderCompanions:
    """Look in the folder that a model was loaded from; ``served`` says which, by model."""

    def __init__(self, served: Callable[[str], Served | None]) -> None:
        self._served = served

    async def read(self, model: str, name: Companion) -> bytes | None:
        """Return a file of ``model``, None if there is none or it has more than MAX_BYTES."""
        served = self._served(model)
        if served is None or not served.config.path:
            return None
        return await run_in_thread(partial(_read, Path(served.config.path) / name), "read")


def _read(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError:
        return None
    return content if len(content) <= MAX_BYTES else None
