"""Let Python find compiled modules before their sources."""

import importlib
import sys
from pathlib import Path

from app.compiled.modules import MODULES, place

# Shared by all of them.
LIBRARY = "library"


def use_compiled(wanted: bool = True) -> bool:
    """Use what was compiled of the sources as they are, if ``wanted``; return whether it is there.

    Does nothing once a module that it would replace has been imported.
    """
    if not wanted or _any_imported():
        return False
    folder = place()
    if not folder.is_dir():
        return False
    sys.path.append(str(folder / LIBRARY))
    for package in MODULES:
        own = importlib.import_module(package)  # a docstring
        own.__path__.insert(0, str(folder.joinpath(*package.split("."))))
    return True


def is_compiled() -> bool:
    """Return whether the modules in use are compiled ones."""
    module = importlib.import_module("scheduler.queue")
    return Path(module.__file__ or "").suffix != ".py"


def _any_imported() -> bool:
    return any(
        f"{package}.{name}" in sys.modules
        for package, names in MODULES.items()
        for name in names.split()
    )
