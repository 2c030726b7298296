"""What a client such as grpcurl finds out without any .proto file."""

from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor, ServiceDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from backends.fake import FakeBackend, FakeOptions
from scheduler.engine import Engine
from scheduler.observer import Observer
from scheduler.options import SchedulerOptions
from tests.fixtures.grpc_calls import Client, grpc_client
from tests.unit.test_grpc_server import REFLECTION, reflect
from transports.statistics import Statistics

# What a server does only if it is told to.
OFF = (
    "RepositoryModelLoad", "RepositoryModelUnload", "SystemSharedMemoryStatus",
    "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister", "CudaSharedMemoryStatus",
    "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister",
)  # fmt: skip


async def described(client: Client, version: str, service: str) -> ServiceDescriptor:
    """Return ``service`` as the server describes it, in a pool that knows nothing else."""
    answer = await reflect(client, version, file_containing_symbol=service)
    pool = DescriptorPool()
    files = [
        FileDescriptorProto.FromString(file)
        for file in answer.file_descriptor_response.file_descriptor_proto
    ]
    for file in reversed(files):  # what a file needs comes after it
        pool.Add(file)
    found: ServiceDescriptor = pool.FindServiceByName(service)
    return found


async def code_of(client: Client, method: Any) -> grpc.StatusCode | None:
    """Call ``method`` with an empty message; return why it failed, if it did."""
    message = GetMessageClass(method.input_type)()
    path = f"/{method.containing_service.full_name}/{method.name}"
    try:
        await client.channel.unary_unary(path)(message.SerializeToString(), timeout=60)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return None


async def test_every_service_listed_is_described_and_every_method_described_is_served() -> None:
    engine = Engine(SchedulerOptions(), Statistics(Observer()))
    await engine.load(FakeBackend(FakeOptions()))
    engine.open()
    async with grpc_client(engine) as (client, _):
        for version in REFLECTION:
            listed = (await reflect(client, version, list_services="")).list_services_response
            names = [entry.name for entry in listed.service]
            services = [await described(client, version, name) for name in names]
            methods = [method for service in services for method in service.methods]
            assert {"Predict", "Check", "Watch", "ModelInfer", "ModelStreamInfer"} <= {
                method.name for method in methods
            }
            for method in methods:
                if not (method.client_streaming or method.server_streaming):
                    code = await code_of(client, method)
                    off = method.name in OFF
                    assert (code is grpc.StatusCode.UNIMPLEMENTED) == off, method.full_name
    await engine.close(0.0)


async def test_the_fields_of_a_message_are_described_by_name_and_number() -> None:
    engine = Engine(SchedulerOptions(), Observer())
    async with grpc_client(engine) as (client, _):
        service = await described(client, REFLECTION[0], "predictor.Predictor")
    fields = {
        field.name: (field.number, field.type)
        for field in service.methods_by_name["Predict"].input_type.fields
    }
    assert fields["batch_size"] == (1, FieldDescriptor.TYPE_INT32)
    assert fields["float_features"] == (2, FieldDescriptor.TYPE_MESSAGE)
    await engine.close(0.0)
