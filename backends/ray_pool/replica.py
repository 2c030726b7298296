"""What runs in a worker of the cluster: one backend, loaded when the actor is made or remade."""

import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from backends.ray_pool.alive import Alive
from backends.ray_pool.cluster import node_of_worker
from backends.ray_pool.packing import Packed, unpack
from backends.ray_pool.refused import Refused
from backends.ray_pool.updated import UpdatedActor, UpdatedTables
from scheduler.backend import Backend, Checked, Portable, TableSpec, Updatable
from scheduler.errors import DeviceLostError, LoadError, ServingError
from scheduler.execute import load_new
from scheduler.types import Array, Batch, InferRequest, ModelSpec

_log = logging.getLogger(__name__)

Check = Callable[[InferRequest], Checked | None]


@dataclass(frozen=True, slots=True)
class Described:
    """A loaded model; ``check`` is None if only the replica itself can check requests.

    ``tables`` are those that updates can change.
    """

    spec: ModelSpec
    check: Check | None
    tables: tuple[TableSpec, ...] | Refused


class Makes(Protocol):
    """A backend as it travels to where it is made."""

    def make(self) -> Backend:
        """Return the backend, not loaded. Raises LoadError."""


class Replica(UpdatedActor):
    """Serve one backend to the gateway; its methods are called on several threads at once."""

    def __init__(self, inner: Makes) -> None:
        """Load the model; if that fails, be there to say why."""
        self._backend: Backend | None = None
        self._failure = ""
        try:
            self._backend = load_new(inner.make)
        except LoadError as error:
            self._failure = str(error)
            return
        self._lanes = threading.BoundedSemaphore(self._backend.lanes)
        updatable = self._backend if isinstance(self._backend, Updatable) else None
        self._tables = UpdatedTables(self._backend.spec.name, updatable)

    def alive(self) -> Alive:
        """Return that it is, once the model is loaded, or why that failed."""
        if self._backend is None:
            return Alive(os.getpid(), node_of_worker(), failure=self._failure)
        identity = _identity(self._backend.spec)
        lanes, state = self._backend.lanes, self._tables.state
        return Alive(os.getpid(), node_of_worker(), identity, lanes, state=state)

    def describe(self) -> Described:
        """Return what the model takes and gives, and what checks requests elsewhere."""
        backend = self._loaded
        check = backend.checker() if isinstance(backend, Portable) else None
        return Described(backend.spec, check, self._tables.specs())

    def run(self, packed: Packed, checked: bool) -> Mapping[str, Array] | Refused:
        """Compute one batch, which has been ``checked`` or is checked now."""
        backend = self._loaded
        try:
            requests = unpack(packed)
            if not checked:
                requests = [_checked(backend, request) for request in requests]
            compute = backend.prepare(Batch(tuple(requests)))
            with self._lanes:
                return compute()
        except ServingError as error:
            return Refused.of(error)
        except DeviceLostError:
            # Another process has another context: Ray starts one, and the batch goes elsewhere.
            _log.exception("the device is lost: this worker ends")
            os.kill(os.getpid(), signal.SIGKILL)
            raise

    @property
    def _loaded(self) -> Backend:
        if self._backend is None:
            raise RuntimeError(f"no model is loaded: {self._failure}")
        return self._backend


def _checked(backend: Backend, request: InferRequest) -> InferRequest:
    checked = backend.check(request)
    return request if checked is None else checked.request


def _identity(spec: ModelSpec) -> str:
    """Tell whether replicas serve the same: machines may differ in how they compute."""
    return repr(
        (spec.name, spec.version, spec.inputs, spec.outputs, spec.max_batch_rows,
         spec.properties.get("sha256"))
    )  # fmt: skip
