"""How a transport lets its clients load and unload models, where that is allowed."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a version is not served, or not in the form that it has now; "" is any version."""

    model: str
    version: str
    reason: str


class ModelControl(Protocol):
    """The models that were configured, by the names they are served under."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every model that can be loaded, served at present or not."""

    async def load(self, model: str) -> None:
        """Load the files of ``model`` anew and let them take over from what serves.

        Whoever asks while a load waits for its turn shares it. Raises ServingError with the
        reason, and then what served serves on.
        """

    async def unload(self, model: str) -> None:
        """Answer what ``model`` has admitted and serve it no longer. Raises ServingError."""
