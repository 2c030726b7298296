"""The processes that carry callers' tensors, as the server holds them: PyTorch is in them alone."""

import asyncio
import dataclasses
import fcntl
import json
import logging
import mmap
import os
import socket
import sys

import numpy as np
import numpy.typing as npt

from scheduler.errors import Code, ServingError
from scheduler.threads import run_in_thread
from transports.collective.channel import Channel
from transports.collective.messages import (
    Failure,
    Message,
    Ready,
    Rendezvous,
    Transfer,
    Transferred,
)

# Importing PyTorch takes seconds, many of them on a busy machine.
_START_S = 120.0
_PACKET_BYTES = 4096
_READY = b"ready"
# What a message leaves in an arena up to here is kept for the next: pages are quicker than none.
_KEPT_BYTES = 1 << 20
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

logger = logging.getLogger(__name__)


class CarrierGoneError(Exception):
    """A carrier has ended, or given its caller up; the message says what it knew."""


@dataclasses.dataclass(frozen=True, slots=True)
class CarrierPlan:
    """What every carrier is like; see ``PairOptions`` and ``CollectiveOptions``."""

    backend: str
    device: str
    nccl_plugin_path: str
    arena_bytes: int
    timeout_s: float


class Carrier:
    """One caller's process. Its arena is the memory that the tensors come and go through."""

    def __init__(self, channel: Channel, arena: mmap.mmap) -> None:
        self._channel = channel
        self._arena = arena
        self._bytes: npt.NDArray[np.uint8] = np.frombuffer(arena, np.uint8)

    async def meet(self, peer: Channel) -> None:
        """Relay what it and the caller tell each other until they have met.

        Raises CarrierGoneError, or ServingError for what the caller has no business to say.
        """
        relaying = asyncio.create_task(self._relay_from(peer))
        meeting = asyncio.create_task(self._relay_to(peer))
        both = relaying, meeting
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            await (meeting if meeting.done() else relaying)
        finally:
            for each in both:
                each.cancel()
            # Whatever either of them has met with is no news any more.
            await asyncio.gather(*both, return_exceptions=True)

    async def receive(self, size_bytes: int) -> bytes:
        """Return the next ``size_bytes`` that the caller sends. Raises CarrierGoneError."""
        self._channel.send(Transfer(receive=True, size_bytes=size_bytes))
        await self._transferred()
        content = self._bytes[:size_bytes].tobytes()
        self._forget(size_bytes)
        return content

    def write(self, place: slice, content: npt.NDArray[np.uint8]) -> None:
        """Put bytes into the message to be sent."""
        self._bytes[place] = content

    async def send(self, size_bytes: int) -> None:
        """Send the message of so many bytes to the caller. Raises CarrierGoneError."""
        self._channel.send(Transfer(receive=False, size_bytes=size_bytes))
        await self._transferred()
        self._forget(size_bytes)

    def close(self) -> None:
        """End the process."""
        self._channel.close()

    async def _transferred(self) -> None:
        message = await self._next()
        assert isinstance(message, Transferred)

    async def _next(self) -> Message:
        message = await self._channel.next()
        if message is None:
            raise CarrierGoneError(
                "the process for this caller has ended, as it does if more comes than was announced"
            )
        if isinstance(message, Failure):
            raise CarrierGoneError(message.detail)
        return message

    async def _relay_to(self, peer: Channel) -> None:
        while not isinstance(message := await self._next(), Ready):
            peer.send(message)

    async def _relay_from(self, peer: Channel) -> None:
        while True:
            message = await peer.next()
            if message is None:
                raise CarrierGoneError("the caller has gone")
            if not isinstance(message, Rendezvous):
                raise out_of_turn(message)
            self._channel.send(message)

    def _forget(self, size_bytes: int) -> None:
        if size_bytes > _KEPT_BYTES:
            self._arena.madvise(mmap.MADV_REMOVE)


class Nursery:
    """Start the process that carriers are forked from, and ask it for one after another."""

    def __init__(self, plan: CarrierPlan) -> None:
        self._plan = plan
        self._socket: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Return once carriers can be had. Raises OSError that says why they cannot."""
        async with self._starting:
            await self._start()

    async def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_START_S)
        with theirs:
            descriptor = theirs.fileno()
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "transports.collective.nursery", str(descriptor),
                self._plan.backend, self._plan.nccl_plugin_path,
                pass_fds=(descriptor,), start_new_session=True, stdin=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
        said = await run_in_thread(lambda: ours.recv(_PACKET_BYTES), "nursery")
        if said != _READY:
            ours.close()
            raise OSError(said.decode() or "the process of the carriers ended at its start")
        ours.setblocking(False)
        if self._socket is not None:
            self._socket.close()
        self._socket = ours

    async def carrier(self, address: str) -> Carrier:
        """Return a new carrier, whose gloo listens on ``address``.

        Raises ServingError (UNAVAILABLE).
        """
        ours, theirs = socket.socketpair()
        arena_fd = _arena(self._plan.arena_bytes)
        try:
            with theirs:
                await self._fork(address, [theirs.fileno(), arena_fd])
            arena = mmap.mmap(arena_fd, 0)
        except OSError as error:
            ours.close()
            raise ServingError(Code.UNAVAILABLE, "no process for this caller", 1.0) from error
        finally:
            os.close(arena_fd)
        reader, writer = await asyncio.open_connection(sock=ours)
        return Carrier(Channel(reader, writer), arena)

    async def close(self) -> None:
        """End the process; carriers end each with their caller."""
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            await self._process.wait()

    async def _fork(self, address: str, descriptors: list[int]) -> None:
        packet = json.dumps(
            {
                "backend": self._plan.backend,
                "address": address,
                "device": self._plan.device,
                "timeout_s": self._plan.timeout_s,
            }
        ).encode()
        async with self._starting:
            try:
                self._send(packet, descriptors)
            except ConnectionError as error:  # it has been killed: others will do
                logger.warning("the process that carriers are forked from has gone: %s", error)
                await self._start()
                self._send(packet, descriptors)

    def _send(self, packet: bytes, descriptors: list[int]) -> None:
        if self._socket is None:
            raise ConnectionError("it did not start")
        socket.send_fds(self._socket, [packet], descriptors)


def out_of_turn(message: Message) -> ServingError:
    """Return the refusal of a message that nobody waits for."""
    return ServingError(
        Code.INVALID_REQUEST, f"control message {type(message).__name__}: not expected now"
    )


def _arena(size_bytes: int) -> int:
    """Return the descriptor of shared memory that neither side can make smaller."""
    descriptor = os.memfd_create("narsil-collective", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size_bytes)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    return descriptor
