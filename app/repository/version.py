"""One version of a model, as a backend that may answer only once it has proven itself."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from app.repository.golden import prove
from app.repository.plan import GoldenOptions
from scheduler.backend import Backend, Checked, Compute, Updatable
from scheduler.errors import LoadError
from scheduler.types import Batch, InferRequest, ModelSpec

_BARE = ("*.pt", "*.pt2")


class Proven:
    """``backend``, served under the name and version that its folder has.

    Its load fails if the golden batch does, or if the files were changed meanwhile.
    """

    def __init__(
        self,
        backend: Backend,
        names: tuple[str, str],
        folder: Path,
        golden: GoldenOptions,
        unchanged: Callable[[], bool],
    ) -> None:
        self._backend = backend
        self._names = names
        self._folder = folder
        self._golden = golden
        self._unchanged = unchanged
        # The backend's own, as nothing may stand between on the way of every request.
        self.check: Callable[[InferRequest], Checked | None] = backend.check
        self.prepare: Callable[[Batch], Compute] = backend.prepare
        self._spec: ModelSpec | None = None
        if isinstance(backend, Updatable):  # then this is too, else it must not look like one
            self.update_tables = backend.update_tables
            self.prepare_update = backend.prepare_update
            self.roll_back = backend.roll_back

    @property
    def spec(self) -> ModelSpec:
        """The backend's, under the folder's names; valid after ``load``."""
        return self._spec or self._backend.spec

    def load(self) -> None:
        """Load the backend and prove it. Raises LoadError."""
        self._backend.load()
        name, version = self._names
        try:
            self._spec = replace(self._backend.spec, name=name, version=version)
            prove(self._backend, self._spec, self._folder, self._golden)
            if not self._unchanged():
                raise LoadError("its files were changed while it was loaded")
        except BaseException:
            self._backend.close()
            raise

    @property
    def lanes(self) -> int:
        """The backend's."""
        return self._backend.lanes

    def close(self) -> None:
        """Close the backend."""
        self._backend.close()


def model_path(folder: Path) -> Path:
    """Return what of a version's folder its backend is given: all of it, or a lone model file."""
    if (folder / "manifest.json").exists():
        return folder
    bare = [path for pattern in _BARE for path in folder.glob(pattern)]
    return bare[0] if len(bare) == 1 else folder
