"""Triton's shared memory extensions: the regions of an engine, if clients may have any."""

from scheduler.engine import Engine
from scheduler.errors import Code, ServingError, invalid, shown
from scheduler.regions import Regions
from transports.codecs.oip_shared import HOW_TO

EXTENSION = "system_shared_memory"


def regions_of(engine: Engine) -> Regions:
    """Return what keeps the regions. Raises ServingError (UNSUPPORTED)."""
    if engine.regions is None:
        raise ServingError(Code.UNSUPPORTED, HOW_TO)
    return engine.regions


def register_cuda(engine: Engine) -> None:
    """Refuse memory of a GPU. Raises ServingError (UNSUPPORTED)."""
    regions_of(engine)
    raise ServingError(
        Code.UNSUPPORTED, "CUDA shared memory is not served: register system shared memory instead"
    )


def unregister_cuda(engine: Engine) -> None:
    """Do nothing, as there is none; clients ask it of both kinds. Raises ServingError."""
    regions_of(engine)


def check_cuda(engine: Engine, name: str) -> None:
    """Refuse the name of a region of a GPU: there is none. Raises ServingError."""
    regions_of(engine)
    if name:
        raise invalid(f"CUDA shared memory region {shown(name)} is not registered")
