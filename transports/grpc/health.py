"""``grpc.health.v1.Health``: Check and Watch, following the engine's readiness.

Not grpcio-health-checking's own asyncio servicer: there, the first of two watchers to leave takes
the condition the other one waits on with it, and a watcher that stops reading blocks every change
of status. Only its message classes are used.
"""

import asyncio
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from scheduler.engine import Engine
from transports.grpc.messages import parsed

SERVICE = "grpc.health.v1.Health"


class Health:
    """Say SERVING while the engine is ready, for the server (""), ``services`` and each model."""

    def __init__(self, engine: Engine, services: tuple[str, ...]) -> None:
        self._engine = engine
        self._services = services
        self._closing = False
        self._watchers: set[asyncio.Event] = set()
        self._unwatch = engine.watch(self._changed)

    def method_handlers(self) -> grpc.GenericRpcHandler:
        """Return what grpcio registers for the service."""
        written = {"response_serializer": health_pb2.HealthCheckResponse.SerializeToString}
        handlers = {
            "Check": grpc.unary_unary_rpc_method_handler(self.check, **written),
            "Watch": grpc.unary_stream_rpc_method_handler(self.watch, **written),
        }
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def close(self) -> None:
        """Say NOT_SERVING and end every watch, which would otherwise hold up the stop.

        May be called again.
        """
        if not self._closing:
            self._closing = True
            self._changed()
            self._unwatch()

    async def check(self, body: bytes, context: Any) -> Any:
        """Return the status of one service; NOT_FOUND if there is none of that name."""
        request = await parsed(health_pb2.HealthCheckRequest, body, context)
        status = self._status(request.service)
        if status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service or model")
        return health_pb2.HealthCheckResponse(status=status)

    async def watch(self, body: bytes, context: Any) -> None:
        """Send the status now and whenever it changes; SERVICE_UNKNOWN may become another."""
        request = await parsed(health_pb2.HealthCheckRequest, body, context)
        changed = asyncio.Event()
        self._watchers.add(changed)
        try:
            sent = None
            while True:
                changed.clear()
                status = self._status(request.service)
                if status != sent:
                    await context.write(health_pb2.HealthCheckResponse(status=status))
                    sent = status
                if self._closing:
                    return
                await changed.wait()
        finally:
            self._watchers.discard(changed)

    def _status(self, service: str) -> int:
        names = {"", *self._services, *(spec.name for spec in self._engine.specs())}
        if service not in names:
            status = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        elif self._engine.ready and not self._closing:
            status = health_pb2.HealthCheckResponse.SERVING
        else:
            status = health_pb2.HealthCheckResponse.NOT_SERVING
        return int(status)

    def _changed(self) -> None:
        for changed in self._watchers:
            changed.set()
