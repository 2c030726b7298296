"""Take a port or a path, or say why it cannot be had."""

import asyncio
import errno
import os
import socket
from urllib.parse import quote

import grpc

from transports.grpc.options import GrpcOptions
from transports.unix import ClaimedPath, listening_socket

# Connections the kernel holds until they are accepted.
BACKLOG = 2048
# What a name such as "localhost" may resolve to on a machine without IPv6.
_FAMILY_MISSING = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


async def listen(
    server: grpc.aio.Server,
    host: str,
    port: int,
    tls: grpc.ServerCredentials | None,
    *,
    shared: bool = False,
) -> str:
    """Bind ``server`` and return the URL with the real port. Raises OSError.

    Every address is tried with a plain socket first. grpcio hides why it failed, and is content
    with one address of several: "localhost" on ::1 alone, while another server has the port on
    127.0.0.1 and gets half of the clients.
    """
    for family, address in await _addresses(host, port):
        try:
            _bind(family, address, shared=shared).close()
        except OSError as error:
            if error.errno not in _FAMILY_MISSING:
                raise _refused(error.errno or 0, host, port) from error
    authority = f"[{host}]" if ":" in host else host
    target = f"{authority}:{port}"
    try:
        bound = server.add_secure_port(target, tls) if tls else server.add_insecure_port(target)
    except RuntimeError as error:
        raise _refused(errno.EADDRNOTAVAIL, host, port) from error
    return f"{'grpcs' if tls else 'grpc'}://{authority}:{bound}"


def listen_unix(server: grpc.aio.Server, path: str) -> None:
    """Bind ``server`` to ``path``, which nobody else has. Raises OSError.

    grpcio removes the file when it stops, before it closes the socket.
    """
    listening_socket(path, 1).close()  # tells why, if it cannot be had
    os.unlink(path)
    try:
        server.add_insecure_port(f"unix:{quote(path)}")
    except RuntimeError as error:
        raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL)) from error


async def reserved_sockets(host: str, port: int) -> list[socket.socket]:
    """Return sockets that hold ``port``, 0 being any free one, for others to share.

    Raises OSError if anybody else has it.
    """
    if port:  # alone at first: sharing would let another server's sharing pass
        for each in (await bound_sockets(host, port))[0]:
            each.close()
    return (await bound_sockets(host, port, shared=True))[0]


def reserved_path(options: GrpcOptions) -> ClaimedPath | None:
    """Return what holds the path of a Unix domain socket for others to share, None without one.

    Raises OSError if anybody else has it, or it cannot be shared.
    """
    address = options.unix_address
    if address is not None and options.engine == "grpcio":
        raise OSError(
            "unix_path: grpcio makes its socket itself, so that front ends (server.frontends)"
            " cannot share one: take engine nghttp2, or leave unix_path empty"
        )
    return ClaimedPath(address, BACKLOG) if address else None


async def bound_sockets(
    host: str, port: int, *, shared: bool = False
) -> tuple[list[socket.socket], str]:
    """Return a socket for every address of ``host``, and ``host:port`` with the real port.

    They are bound, and do not listen yet; with ``shared`` other processes may be bound, too.
    Raises OSError.
    """
    bound: list[socket.socket] = []
    for family, address in await _addresses(host, port):
        # Where any port will do, the first address chooses it for all.
        chosen = bound[0].getsockname()[1] if bound else port
        try:
            bound.append(_bind(family, (address[0], chosen, *address[2:]), shared=shared))
        except OSError as error:
            if error.errno not in _FAMILY_MISSING or family != socket.AF_INET6:
                for each in bound:
                    each.close()
                raise _refused(error.errno or 0, host, port) from error
    if not bound:
        raise _refused(errno.EADDRNOTAVAIL, host, port)
    authority = f"[{host}]" if ":" in host else host
    return bound, f"{authority}:{bound[0].getsockname()[1]}"


async def _addresses(host: str, port: int) -> list[tuple[int, tuple[object, ...]]]:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, ValueError) as error:  # ValueError: no name at all, "a..b" or a NUL
        why = error.strerror if isinstance(error, socket.gaierror) else error
        raise OSError(f"cannot listen on {host!r}:{port}/tcp: {why}") from error
    return [(family, address) for family, _, _, _, address in found]


def _bind(family: int, address: tuple[object, ...], *, shared: bool) -> socket.socket:
    # asyncio turns Nagle off only on sockets whose protocol is said.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setblocking(False)
        # A port whose last connections are in TIME_WAIT is free.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def _refused(number: int, host: str, port: int) -> OSError:
    return OSError(number, f"cannot listen on {host}:{port}/tcp: {os.strerror(number)}")
