"""Which calls need an API key, and whether theirs will do."""

from dataclasses import replace

from scheduler.engine import Engine
from transports.credential import API_KEY, AUTHORIZATION, credential_in, not_allowed
from transports.grpc import health, inference
from transports.grpc.metadata import text_in
from transports.grpc.methods import Arrival

# What load balancers ask; it says nothing about the models. Reflection describes messages only.
OPEN_SERVICES = (f"/{health.SERVICE}/", "/grpc.reflection.")
OPEN = frozenset(f"/{inference.SERVICE}/{name}" for name in ("ServerLive", "ServerReady"))
CONTROL = frozenset(
    f"/{inference.SERVICE}/{name}"
    for name in (
        "RepositoryModelLoad", "RepositoryModelUnload",
        "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister",
    )
)  # fmt: skip


class Admission:
    """Let everybody in while ``engine`` has no keys. Each request of a stream counts by itself."""

    def __init__(self, engine: Engine, streams: frozenset[str]) -> None:
        self._engine = engine
        self._streams = streams

    def __call__(self, arrival: Arrival) -> Arrival:
        """Return ``arrival`` with its caller.

        Raises ServingError (UNAUTHENTICATED, PERMISSION_DENIED, RATE_LIMITED).
        """
        access = self._engine.access
        if access is None or arrival.path in OPEN or arrival.path.startswith(OPEN_SERVICES):
            return arrival
        metadata = arrival.metadata
        caller = access.caller(
            credential_in(text_in(metadata, AUTHORIZATION), text_in(metadata, API_KEY))
        )
        if arrival.path in CONTROL and not caller.control:
            raise not_allowed()
        if arrival.path not in self._streams:
            caller.begin()
        return replace(arrival, caller=caller)
