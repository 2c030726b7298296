"""What actors and the gateway tell each other besides batches."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Alive:
    """What an actor says of itself; ``identity`` tells models apart, ``failure`` says why
    none could be loaded, ``state`` is the number of the last change of its tables.
    """

    pid: int
    node: str
    identity: str = ""
    lanes: int = 1
    failure: str = ""
    state: int = 0
