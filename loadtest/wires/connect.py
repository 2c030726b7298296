"""Open the connections of a wire."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from loadtest.closed import NoServerError
from loadtest.pool import abandon
from loadtest.wires.base import Target, Wire
from loadtest.wires.grpc import GrpcWire
from loadtest.wires.http1 import Http1Wire


def _http3(target: Target) -> Wire:
    # Its library comes with the extra "bench", and is not needed by the other wires.
    try:
        from loadtest.wires.http3 import Http3Wire  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise NoServerError(f"no {error.name} here: pip install -e '.[bench]'") from error
    return Http3Wire(target)


SCHEMES: Mapping[str, Callable[[Target], Wire]] = {
    "grpc": GrpcWire,
    "http": Http1Wire,
    "https": _http3,
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
        address = f"{scheme}{'s' if target.tls else ''}://{target.authority}"
        raise NoServerError(f"cannot connect to {address}: {error}") from error
    try:
        yield wires
    finally:
        abandon(wires)
