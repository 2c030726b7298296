"""One caller's process on the server's side: it meets the caller and moves bytes on command.

A peer that sends more than was announced, or speaks no gloo, makes gloo end the process (it calls
``std::terminate``): this one, which nobody else needs. It ends by itself when the server lets go
of its socket.
"""

import mmap
import os
import queue
import resource
import socket
import threading
from dataclasses import dataclass

import torch

from transports.collective.framing import Decoder, encode
from transports.collective.messages import (
    Failure,
    Message,
    Ready,
    Rendezvous,
    Transfer,
    Transferred,
)
from transports.collective.pair import CARRIER, Pair, PairOptions
from transports.collective.rendezvous import RelayedStore

_READ_BYTES = 1 << 16
_GROWTH_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class CarrierOptions:
    """What the server tells a carrier: see ``PairOptions``."""

    backend: str
    address: str
    device: str
    timeout_s: float


def carry(options: CarrierOptions, server: socket.socket, arena_fd: int) -> None:
    """Serve one caller until the server lets go; the tensors go through the arena."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if options.backend == "gloo":  # CUDA maps what it likes
        _bound_memory()
    server.setblocking(True)
    commands: queue.SimpleQueue[Transfer] = queue.SimpleQueue()

    def tell(message: Message) -> None:
        server.sendall(encode(message))

    store = RelayedStore(lambda key, value: tell(Rendezvous(key, value)), options.timeout_s)
    threading.Thread(target=_listen, args=(server, store, commands), daemon=True).start()
    try:
        arena = mmap.mmap(arena_fd, 0)
        pair = Pair(_pair_options(options), store)
        store.close()
        tell(Ready())
        while True:
            _transfer(pair, arena, commands.get())
            tell(Transferred())
    except (RuntimeError, OSError, ValueError) as error:
        tell(Failure(0, "unavailable", str(error)[:200], None))


def _bound_memory() -> None:
    """Let the process grow only so much: gloo keeps a record of all that a peer says it sends."""
    with open("/proc/self/statm", encoding="ascii") as file:
        data_bytes = int(file.read().split()[5]) * resource.getpagesize()
    limit = data_bytes + _GROWTH_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _pair_options(options: CarrierOptions) -> PairOptions:
    return PairOptions(options.backend, CARRIER, options.address, options.device, options.timeout_s)


def _transfer(pair: Pair, arena: mmap.mmap, command: Transfer) -> None:
    # The arena is the server's: it says no more bytes than there are.
    content = torch.frombuffer(arena, dtype=torch.uint8, count=command.size_bytes)
    if command.receive and pair.device.type == "cpu":
        pair.receive(content)
    elif command.receive:
        staged = torch.empty_like(content, device=pair.device)
        pair.receive(staged)
        content.copy_(staged)
    else:
        pair.send(content.to(pair.device))


def _listen(
    server: socket.socket, store: RelayedStore, commands: "queue.SimpleQueue[Transfer]"
) -> None:
    """Take what the server says; end the process with its socket, whatever it is busy with."""
    decoder = Decoder()
    try:
        while data := server.recv(_READ_BYTES):
            for message in decoder.feed(data):
                if isinstance(message, Rendezvous):
                    store.put(message.key, message.value)
                elif isinstance(message, Transfer):
                    commands.put(message)
    finally:
        os._exit(0)
