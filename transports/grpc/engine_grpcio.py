"""The methods on grpcio: one grpc.aio server on the running loop (uvloop or the default one).

Methods are registered without message classes: grpcio hands over bytes.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import grpc

from scheduler.errors import ServingError
from transports.grpc.credentials import server_credentials
from transports.grpc.listen import listen, listen_unix
from transports.grpc.methods import Arrival, Methods, Reply, Stream, Unary
from transports.grpc.options import HEADROOM, GrpcOptions
from transports.sharing import Share


class GrpcioServer(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio has no types
    """Serve ``methods``; with a ``share`` other processes do so on the same port."""

    def __init__(self, options: GrpcOptions, methods: Methods, share: Share | None = None) -> None:
        self._options = options
        self._shared = share is not None
        self._server = grpc.aio.server(options=_channel_arguments(options, shared=self._shared))
        self._methods = methods

    def service(self, handler_call_details: Any) -> Any:
        """Return the handler of one call, None if there is no such method; grpcio asks."""
        path = handler_call_details.method
        unary, stream = self._methods.unary.get(path), self._methods.streams.get(path)
        if unary is None and stream is None:
            return None
        metadata = dict(handler_call_details.invocation_metadata)
        arrival = Arrival(path, metadata, time.perf_counter())
        try:
            arrival = self._methods.admit(arrival)
        except ServingError as failure:
            return _refusing_handler(self._methods.refused(arrival, failure))
        if unary is not None:
            return _unary_handler(arrival, unary)
        assert stream is not None
        return _stream_handler(arrival, stream)

    async def start(self) -> tuple[str, ...]:
        """Listen and serve; return the addresses.

        Raises OSError for a taken port or path, or an unusable certificate.
        """
        addresses = await _listen(self._server, self._options, shared=self._shared)
        self._server.add_generic_rpc_handlers((self,))
        await self._server.start()
        return addresses

    async def stop(self, hold_s: float, grace_s: float, refuse: Callable[[], None]) -> None:
        """Serve on for ``hold_s`` seconds, say GOAWAY, ``refuse``, finish within ``grace_s``."""
        await asyncio.sleep(hold_s)
        stopping = asyncio.create_task(self._server.stop(grace_s))
        await asyncio.sleep(0)  # the task begins with the GOAWAY
        refuse()
        await stopping


def _refusing_handler(reply: Reply) -> grpc.RpcMethodHandler:
    """Return what ends a call before its first message is read."""

    async def refuse(bodies: AsyncIterator[bytes], context: Any) -> None:
        del bodies
        _end(context, reply)

    return grpc.stream_stream_rpc_method_handler(refuse)


def _unary_handler(arrival: Arrival, method: Unary) -> grpc.RpcMethodHandler:
    async def answer(body: bytes, context: Any) -> bytes:
        reply = await method(body, _with_deadline(arrival, context))
        _end(context, reply)
        return reply.body or b""

    return grpc.unary_unary_rpc_method_handler(answer)


def _stream_handler(arrival: Arrival, method: Stream) -> grpc.RpcMethodHandler:
    async def serve(bodies: AsyncIterator[bytes], context: Any) -> None:
        known = _with_deadline(arrival, context)
        _end(context, await method(aiter(bodies), known, context.write))

    return grpc.stream_stream_rpc_method_handler(serve)


def _with_deadline(arrival: Arrival, context: Any) -> Arrival:
    """Return ``arrival`` as its first message, if it has but one, is here."""
    left_s, now_s = context.time_remaining(), time.perf_counter()
    deadline_s = math.inf if left_s is None else now_s + left_s
    return replace(arrival, began_s=now_s, deadline_s=deadline_s)


def _end(context: Any, reply: Reply) -> None:
    """Set the status with which the call ends when its handler returns.

    ``context.abort`` would raise, and the traceback hold the message for longer than the call.
    """
    context.set_trailing_metadata(reply.trailers)
    if reply.status is not grpc.StatusCode.OK:
        context.set_code(reply.status)
        context.set_details(reply.detail)


async def _listen(
    server: grpc.aio.Server, options: GrpcOptions, *, shared: bool
) -> tuple[str, ...]:
    addresses = []
    if options.host:
        tls = server_credentials(options.tls_files) if options.tls_files else None
        address = await listen(server, options.host, options.port, tls, shared=shared)
        addresses.append(address)
    unix = options.unix_address
    if unix is not None:
        unix.claim(lambda path: listen_unix(server, path))
        addresses.append(unix.url)
    return tuple(addresses)


def _channel_arguments(options: GrpcOptions, *, shared: bool) -> list[tuple[str, int]]:
    arguments = [
        ("grpc.max_receive_message_length", int(options.max_message_bytes * HEADROOM)),
        ("grpc.max_send_message_length", options.max_message_bytes),
        ("grpc.max_concurrent_streams", options.max_concurrent_streams),
        ("grpc.max_allowed_incoming_connections", options.max_connections),
        # Clients commonly ping idle connections every 10 s, now and then a little early; grpcio's
        # default, and exactly 10 s, cut them off for that at the fourth ping.
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # On Linux grpcio shares ports by default: two servers would split the clients unnoticed.
        ("grpc.so_reuseport", int(shared)),
    ]
    if options.max_connection_age_s:
        age_ms = round(options.max_connection_age_s * 1000)
        arguments += [
            ("grpc.max_connection_age_ms", age_ms),
            ("grpc.max_connection_age_grace_ms", age_ms),
        ]
    return arguments
