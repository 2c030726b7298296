"""``grpc.health.v1.Health``: Check and Watch, following the engine's readiness.

Not grpcio-health-checking's own asyncio servicer: there, the first of two watchers to leave takes
the condition the other one waits on with it, and a watcher that stops reading blocks every change
of status. Only its message classes are used.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from scheduler.engine import Engine
from scheduler.errors import Code, ServingError, invalid
from transports.grpc.messages import parsed, unary
from transports.grpc.metadata import own_id
from transports.grpc.methods import Arrival, Reply, Send, Stream, Unary
from transports.grpc.outcome import refusal

SERVICE = "grpc.health.v1.Health"


class Health:
    """Say SERVING while the engine is ready, for the server (""), ``services`` and each model."""

    def __init__(self, engine: Engine, services: tuple[str, ...]) -> None:
        self._engine = engine
        self._services = services
        self._closing = False
        self._watchers: set[asyncio.Event] = set()
        self._unwatch = engine.watch(self._changed)

    def unary(self) -> dict[str, Unary]:
        """Return the method of one answer by path."""
        return {f"/{SERVICE}/Check": unary(health_pb2.HealthCheckRequest, self.check)}

    def streams(self) -> dict[str, Stream]:
        """Return the method of many answers by path."""
        return {f"/{SERVICE}/Watch": self.watch}

    def close(self) -> None:
        """Say NOT_SERVING and end every watch, which would otherwise hold up the stop.

        May be called again.
        """
        if not self._closing:
            self._closing = True
            self._changed()
            self._unwatch()

    async def check(self, request: Any) -> Any:
        """Return the status of one service. Raises ServingError if there is none of that name."""
        status = self._status(request.service)
        if status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN:
            raise ServingError(Code.MODEL_NOT_FOUND, "no such service or model")
        return health_pb2.HealthCheckResponse(status=status)

    async def watch(self, bodies: AsyncIterator[bytes], arrival: Arrival, send: Send) -> Reply:
        """Send the status now and whenever it changes; SERVICE_UNKNOWN may become another."""
        try:
            body = await anext(bodies, None)
            if body is None:
                raise invalid("no grpc.health.v1.HealthCheckRequest was sent")
            request = parsed(health_pb2.HealthCheckRequest, body)
        except ServingError as failure:
            return refusal(failure, own_id(arrival.metadata))
        changed = asyncio.Event()
        self._watchers.add(changed)
        try:
            await self._report(request.service, changed, send)
        finally:
            self._watchers.discard(changed)
        return Reply(grpc.StatusCode.OK)

    async def _report(self, service: str, changed: asyncio.Event, send: Send) -> None:
        """Send the status of ``service`` whenever it is another, until closed."""
        sent = None
        while True:
            changed.clear()
            status = self._status(service)
            if status != sent:
                await send(health_pb2.HealthCheckResponse(status=status).SerializeToString())
                sent = status
            if self._closing:
                return
            await changed.wait()

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
