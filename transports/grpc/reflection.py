"""Server reflection: lets ``grpcurl`` and others call the services without their .proto files."""

from collections.abc import Iterator

import grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

# The two versions share every message, field by field; older clients ask for the first only.
SERVICES = ("grpc.reflection.v1alpha.ServerReflection", "grpc.reflection.v1.ServerReflection")


def method_handlers(services: tuple[str, ...]) -> Iterator[grpc.GenericRpcHandler]:
    """Yield what grpcio registers so that ``services`` can be listed and described."""
    servicer = ReflectionServicer((*services, SERVICES[0]))
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    for service in SERVICES:
        yield grpc.method_handlers_generic_handler(service, {"ServerReflectionInfo": method})
