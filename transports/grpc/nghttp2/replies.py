"""How a call ends -> HTTP/2 header fields. Pure."""

from typing import TypeAlias
from urllib.parse import quote

import grpc
import ngh2

from transports.grpc.methods import Reply

Fields: TypeAlias = list[tuple[bytes, bytes]]

# Before the first message of an answer.
HEAD: Fields = [
    (b":status", b"200"),
    (b"content-type", b"application/grpc"),
    (b"grpc-accept-encoding", b"identity,deflate,gzip"),
]
_STATUS = {status: b"%d" % status.value[0] for status in grpc.StatusCode}
# All of printable ASCII but the percent sign (the specification's Percent-Byte-Unencoded).
_PLAIN = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"


def trailers(reply: Reply) -> Fields:
    """Return the fields that end a call."""
    fields: Fields = [(b"grpc-status", _STATUS[reply.status])]
    if reply.detail:
        # What differs from call to call stays out of the peer's header table.
        fields.append(ngh2.NeverIndexedHeader(b"grpc-message", message(reply.detail)))
    for name, value in reply.trailers:
        fields.append(ngh2.NeverIndexedHeader(name.encode("latin-1"), value.encode("latin-1")))
    return fields


def message(detail: str) -> bytes:
    """Return ``detail`` percent-encoded, as grpc-message has it."""
    return quote(detail, safe=_PLAIN, errors="replace").encode("ascii")


def http_refusal(status: int) -> Fields:
    """Return the answer to a request that is no gRPC call."""
    fields: Fields = [(b":status", b"%d" % status), (b"content-length", b"0")]
    if status == 405:
        fields.append((b"allow", b"POST"))
    return fields
