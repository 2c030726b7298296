"""What a request names, as far as it is served: nothing else may become a label or be counted."""

from dataclasses import dataclass
from typing import Final

from scheduler.engine import Engine
from scheduler.errors import ServingError


@dataclass(slots=True)
class Named:
    """A model and its version; "" for what is not served."""

    model: Final[str]
    version: Final[str]

    def __init__(self, model: str = "", version: str = "") -> None:
        self.model = model
        self.version = version


def named(engine: Engine, model: str, version: str = "") -> Named:
    """Return what is served of ``model`` ("" is the only one) and ``version``.

    That may be a label, and "" is what serves by default.
    """
    try:
        spec = engine.spec(model, version)
    except ServingError:
        return Named(named(engine, model).model) if version else Named()
    return Named(spec.name, spec.version)
