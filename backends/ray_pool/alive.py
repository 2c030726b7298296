"""What actors and the gateway tell each other besides batches."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Alive:
    """What an actor says of itself; ``identity`` tells models apart, ``failure`` says why
    none could be loaded.
    """

    pid: int
    node: str
    identity: str = ""
    lanes: int = 1
    failure: str = ""
