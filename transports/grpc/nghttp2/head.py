"""A request's header block -> what the call says of itself. Pure.

The rules are those of gRPC over HTTP/2 (grpc/doc/PROTOCOL-HTTP2.md).
"""

import base64
import binascii
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from scheduler.errors import Code, ServingError, invalid, shown
from transports.grpc.methods import Metadata

# What a call's metadata may add up to, counted as HTTP/2 does; grpcio's hard limit too.
MAX_HEAD_BYTES = 16 * 1024
# HTTP/2 counts so much for each field besides its name and value (RFC 9113 6.5.2).
_FIELD_BYTES = 32
_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNIT_S = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_CONTENT_TYPE = re.compile(rb"application/grpc(\+proto)?(;.*)?", re.IGNORECASE)
_CODINGS = ("identity", "gzip", "deflate")
_NO_METADATA = frozenset({b"te", b"content-type"})


class NotGrpcError(Exception):
    """The request is no gRPC call; ``status`` is the HTTP answer to it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP status {status}")
        self.status = status


class Head(NamedTuple):
    """One call's path, metadata, time limit and the coding of its compressed messages."""

    path: str
    metadata: Metadata
    timeout_s: float
    coding: str


def parse_head(headers: Sequence[tuple[bytes, bytes]]) -> Head:
    """Return the head in ``headers``.

    Raises NotGrpcError, or ServingError for a call that cannot be served.
    """
    fields = dict(headers)
    if fields.get(b":method") != b"POST":
        raise NotGrpcError(405)
    if not _CONTENT_TYPE.fullmatch(fields.get(b"content-type", b"")):
        raise NotGrpcError(415)
    size_bytes = sum([len(name) + len(value) + _FIELD_BYTES for name, value in headers])
    if size_bytes > MAX_HEAD_BYTES:
        raise ServingError(
            Code.PAYLOAD_TOO_LARGE,
            f"metadata have {size_bytes} bytes, the limit is {MAX_HEAD_BYTES}",
        )
    return Head(
        fields.get(b":path", b"").decode("latin-1"),
        _metadata(fields),
        _timeout_s(fields.get(b"grpc-timeout")),
        _coding(fields.get(b"grpc-encoding", b"identity")),
    )


def _timeout_s(value: bytes | None) -> float:
    if value is None:
        return math.inf
    match = _TIMEOUT.fullmatch(value)
    if match is None:
        raise invalid(
            "grpc-timeout: expected 1 to 8 digits and a unit (H, M, S, m, u or n), "
            f"got {shown(value.decode('latin-1'))}"
        )
    return int(match.group(1)) * _UNIT_S[match.group(2)]


def _coding(value: bytes) -> str:
    name = value.decode("latin-1")
    if name not in _CODINGS:
        raise ServingError(
            Code.UNSUPPORTED, f"grpc-encoding: {shown(name)} is none of {', '.join(_CODINGS)}"
        )
    return name


def _metadata(fields: dict[bytes, bytes]) -> Metadata:
    metadata: dict[str, str | bytes] = {}
    for name, value in fields.items():
        if name.startswith((b":", b"grpc-")) or name in _NO_METADATA:
            continue
        key = name.decode("latin-1")
        metadata[key] = _binary(key, value) if name.endswith(b"-bin") else value.decode("latin-1")
    return metadata


def _binary(key: str, value: bytes) -> bytes:
    """Return what ``value`` encodes in base64, with or without padding."""
    try:
        return base64.b64decode(value + b"=" * (-len(value) % 4), validate=True)
    except binascii.Error as error:
        raise invalid(f"metadata {shown(key)}: the value is not base64") from error
