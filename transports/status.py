"""The only place where a wire status stands: Code -> gRPC status and HTTP status."""

from typing import NamedTuple

import grpc

from scheduler.errors import Code


class Status(NamedTuple):
    """How one Code looks on the wire; ``title`` is the RFC 9457 title."""

    grpc: grpc.StatusCode
    http: int
    title: str


STATUS: dict[Code, Status] = {
    Code.INVALID_REQUEST: Status(grpc.StatusCode.INVALID_ARGUMENT, 400, "Invalid request"),
    Code.UNAUTHENTICATED: Status(grpc.StatusCode.UNAUTHENTICATED, 401, "API key needed"),
    Code.PERMISSION_DENIED: Status(grpc.StatusCode.PERMISSION_DENIED, 403, "Not allowed"),
    Code.MODEL_NOT_FOUND: Status(grpc.StatusCode.NOT_FOUND, 404, "Model not found"),
    Code.PAYLOAD_TOO_LARGE: Status(grpc.StatusCode.RESOURCE_EXHAUSTED, 413, "Payload too large"),
    Code.OVERLOADED: Status(grpc.StatusCode.RESOURCE_EXHAUSTED, 429, "Overloaded"),
    Code.RATE_LIMITED: Status(grpc.StatusCode.RESOURCE_EXHAUSTED, 429, "Rate limit reached"),
    Code.UNAVAILABLE: Status(grpc.StatusCode.UNAVAILABLE, 503, "Unavailable"),
    Code.DEADLINE_EXCEEDED: Status(grpc.StatusCode.DEADLINE_EXCEEDED, 504, "Deadline exceeded"),
    # 499 is for logs and metrics: the client that would read it has left.
    Code.CANCELLED: Status(grpc.StatusCode.CANCELLED, 499, "Client closed the request"),
    Code.UNSUPPORTED: Status(grpc.StatusCode.UNIMPLEMENTED, 501, "Unsupported"),
    Code.INTERNAL: Status(grpc.StatusCode.INTERNAL, 500, "Internal error"),
}
