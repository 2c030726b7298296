"""A whole answer over uvicorn's HTTP/1.1: what its ``send`` writes, in one piece."""

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from transports.http.whole import Fields

_CLOSE = (b"connection", b"close")


def send_whole(cycle: RequestResponseCycle, status: int, headers: Fields, body: bytes) -> bool:
    """Answer the request of ``cycle``; False if there is more to it: then nothing was done.

    ``headers`` are our own, and have a content length.
    """
    if (
        cycle.flow.write_paused
        or cycle.disconnected
        or cycle.response_started
        or cycle.scope["method"] != "POST"
    ):
        return False
    standing = cycle.default_headers
    ends = _CLOSE in standing
    cycle.keep_alive = cycle.keep_alive and not ends
    lines = [STATUS_LINE[status]]
    for name, value in standing:
        lines += (name, b": ", value, b"\r\n")
    for name, value in headers:
        lines += (name, b": ", value, b"\r\n")
    if not cycle.keep_alive and not ends:
        lines.append(b"connection: close\r\n")
    lines += (b"\r\n", body)
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    cycle.transport.write(b"".join(lines))
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
    return True
