"""Bind before serving, so that a taken port is one clear error."""

import errno
import socket


def bind(
    host: str, port: int, kind: socket.SocketKind, *, shared: bool = False, listens: bool = True
) -> socket.socket:
    """Return a bound, non-blocking UDP socket, or a TCP socket that listens; port 0: any free one.

    With ``shared`` other processes may be bound to it, too. Raises OSError that names host and
    port.
    """
    try:
        found = socket.getaddrinfo(host, port, type=kind, flags=socket.AI_PASSIVE)[0]
        family, _, protocol, _, address = found
        # asyncio turns Nagle off only on sockets whose protocol is said: with it on, an answer's
        # body waits 40 ms for the client to acknowledge the head.
        bound = socket.socket(family, kind, protocol)
        try:
            if kind is socket.SOCK_STREAM:
                # Connections of a run before, still in TIME_WAIT, must not hold the port.
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            bound.setblocking(False)
            bound.bind(address)
            if kind is socket.SOCK_STREAM and listens:
                bound.listen()  # until then another may still take the port with SO_REUSEADDR
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise _unusable(host, port, kind, error) from error
    except ValueError as error:  # no host name: it cannot be encoded, or has a NUL
        raise _unusable(host, port, kind, OSError(errno.EINVAL, str(error))) from error
    return bound


def reserve(host: str, port: int, kind: socket.SocketKind) -> socket.socket:
    """Return a socket that holds ``port`` for others to share; of TCP it does not listen.

    Raises OSError if anybody else has the port.
    """
    if port:
        bind(host, port, kind).close()  # alone: sharing would let another server's sharing pass
    return bind(host, port, kind, shared=True, listens=False)


def url(scheme: str, host: str, port: int) -> str:
    """Return the URL of a server at ``host``."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def port_of(bound: socket.socket) -> int:
    """Return the port a socket is bound to."""
    port: int = bound.getsockname()[1]
    return port


def _unusable(host: str, port: int, kind: socket.SocketKind, error: OSError) -> OSError:
    wire = "tcp" if kind is socket.SOCK_STREAM else "udp"
    return OSError(error.errno, f"cannot listen on {host}:{port}/{wire}: {error.strerror}")
