"""Open the connections of a wire."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from loadtest.closed import NoServerError
from loadtest.drive import abandon
from loadtest.wires.base import Target, Wire
from loadtest.wires.grpc import GrpcWire
from loadtest.wires.http1 import Http1Wire
from loadtest.wires.http3 import Http3Wire

SCHEMES: Mapping[str, Callable[[Target], Wire]] = {
    "grpc": GrpcWire,
    "http": Http1Wire,
    "https": Http3Wire,
}


@contextmanager
def connected(scheme: str, target: Target, count: int) -> Iterator[Sequence[Wire]]:
    """Open ``count`` connections to ``target``, closed at the end. Raises NoServerError."""
    wires: list[Wire] = []
    try:
        for _ in range(count):
            wires.append(SCHEMES[scheme](target))  # noqa: PERF401 - what is open must be closed
    except NoServerError as error:
        abandon(wires)
        address = f"{scheme}://{target.authority}"
        raise NoServerError(f"cannot connect to {address}: {error}") from error
    try:
        yield wires
    finally:
        abandon(wires)
