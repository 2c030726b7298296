"""The Open Inference Protocol's methods of shared memory, which are Triton's."""

from typing import Any

from scheduler.engine import Engine
from scheduler.regions import Region
from transports.grpc.messages import unary
from transports.grpc.methods import Unary
from transports.proto import open_inference_pb2 as oip
from transports.shared_memory import check_cuda, regions_of, register_cuda, unregister_cuda


class MemoryMethods:
    """Answer for ``engine``; without regions each says how to have some."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def methods(self) -> dict[str, Unary]:
        """Return the methods by name."""
        answers = {
            "SystemSharedMemoryStatus": self._status,
            "SystemSharedMemoryRegister": self._register,
            "SystemSharedMemoryUnregister": self._unregister,
            "CudaSharedMemoryStatus": self._cuda_status,
            "CudaSharedMemoryRegister": self._cuda_register,
            "CudaSharedMemoryUnregister": self._cuda_unregister,
        }
        return {
            name: unary(getattr(oip, f"{name}Request"), answer) for name, answer in answers.items()
        }

    async def _status(self, request: Any) -> Any:
        answer = oip.SystemSharedMemoryStatusResponse()
        for region in regions_of(self._engine).status(request.name):
            status = answer.regions[region.name]
            status.name, status.key = region.name, region.key
            status.offset, status.byte_size = region.offset, region.size_bytes
        return answer

    async def _register(self, request: Any) -> Any:
        region = Region(request.name, request.key, request.offset, request.byte_size)
        regions_of(self._engine).register(region)
        return oip.SystemSharedMemoryRegisterResponse()

    async def _unregister(self, request: Any) -> Any:
        regions_of(self._engine).unregister(request.name)
        return oip.SystemSharedMemoryUnregisterResponse()

    async def _cuda_status(self, request: Any) -> Any:
        check_cuda(self._engine, request.name)
        return oip.CudaSharedMemoryStatusResponse()

    async def _cuda_register(self, request: Any) -> Any:
        del request
        register_cuda(self._engine)
        return oip.CudaSharedMemoryRegisterResponse()

    async def _cuda_unregister(self, request: Any) -> Any:
        del request
        unregister_cuda(self._engine)
        return oip.CudaSharedMemoryUnregisterResponse()
