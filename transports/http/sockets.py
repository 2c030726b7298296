"""Bind before serving, so that a taken port is one clear error."""

import socket


def bind(host: str, port: int, kind: socket.SocketKind) -> socket.socket:
    """Return a bound, non-blocking TCP or UDP socket; port 0 takes a free one.

    Raises OSError that names host and port.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=kind, flags=socket.AI_PASSIVE)[0]
        bound = socket.socket(family, kind)
        try:
            if kind is socket.SOCK_STREAM:
                # Connections of a run before, still in TIME_WAIT, must not hold the port.
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.setblocking(False)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        wire = "tcp" if kind is socket.SOCK_STREAM else "udp"
        raise OSError(
            error.errno, f"cannot listen on {host}:{port}/{wire}: {error.strerror}"
        ) from error
    return bound


def url(scheme: str, host: str, port: int) -> str:
    """Return the URL of a server at ``host``."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def port_of(bound: socket.socket) -> int:
    """Return the port a socket is bound to."""
    port: int = bound.getsockname()[1]
    return port
