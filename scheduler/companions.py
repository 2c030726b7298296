"""What lies beside a model's own files, for whoever wants to show the model to people."""

from typing import Literal, Protocol

# A request that the model answers; what a person needs to put requests together.
Companion = Literal["example.json", "catalogue.json"]


class Companions(Protocol):
    """The files beside those of the models that are served."""

    async def read(self, model: str, name: Companion) -> bytes | None:
        """Return a file of ``model`` whole, None if there is none."""
