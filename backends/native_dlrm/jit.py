"""Compile one kernel with Numba, keeping the result on disk for the next start."""

import hashlib
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numba
from numba.core.caching import FunctionCache

_log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

# Sums may be reordered, which lets them use vector instructions; NaN and infinity keep their
# meaning.
_FAST = {"contract", "reassoc", "nsz"}


def keep_compiled_in(folder: Path) -> None:
    """Let kernels compiled from now on be kept in ``folder``; it is trusted like the program."""
    place = folder.expanduser() / f"numba-{_sources()}"
    # Numba reads the setting when a kernel is decorated; this is its only way to be told.
    setattr(numba.config, "CACHE_DIR", str(place))  # noqa: B010  # untyped module


def _sources() -> str:
    """Return a name for the sources: Numba looks at a kernel's own file, not at what it calls."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


class _Kept(FunctionCache):
    """Numba's cache, but a disk that takes or gives nothing costs the start its time, no more."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return what was kept, None if there is nothing."""
        try:
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except OSError as error:
            _tell(str(self.cache_path), str(error))
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep what was compiled, if that is possible."""
        try:
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]
        except OSError as error:
            _tell(str(self.cache_path), str(error))


@cache  # once for all kernels
def _tell(folder: str, why: str) -> None:
    _log.warning("kernels are compiled at each start: %s: %s", folder, why)


def kernel(function: Callable[P, T]) -> Callable[P, T]:
    """Compile ``function`` on its first call, for one thread and without the GIL."""
    compiled: Any = numba.njit(nogil=True, fastmath=_FAST, error_model="numpy")(function)
    try:
        compiled._cache = _Kept(function)  # type: ignore[no-untyped-call]  # noqa: SLF001
    except RuntimeError as error:
        _log.warning("kernels are compiled at each start: %s", error)
    found: Callable[P, T] = compiled
    return found
