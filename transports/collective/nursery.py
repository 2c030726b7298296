"""The process that carriers are forked from: it has imported PyTorch, and does nothing else.

    python -P -m transports.collective.nursery DESCRIPTOR BACKEND NCCL_PLUGIN

On the descriptor, a SEQPACKET socket, it says what is wrong, or nothing if it is ready; then each
packet is a carrier's options as JSON with two descriptors, the carrier's socket and its arena.
"""

import json
import os
import signal
import socket
import sys
from typing import NoReturn

import torch.distributed as dist

from transports.collective.carrier import CarrierOptions, carry

_PACKET_BYTES = 4096
READY = b"ready"


def main(descriptor: int, backend: str, plugin: str) -> NoReturn:
    """Fork carriers until the server is gone."""
    # Whoever stops the server signals the whole group; carriers go when it lets go of them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    if plugin:
        os.putenv("NCCL_NET_PLUGIN", plugin)
    server = socket.socket(fileno=descriptor)
    server.send(_trouble(backend).encode() or READY)
    while True:
        packet, descriptors, _, _ = socket.recv_fds(server, _PACKET_BYTES, 2)
        if not packet:
            os._exit(0)  # PyTorch's own clean-up takes a second
        if os.fork() == 0:
            server.close()
            _carry(packet, descriptors)
        for each in descriptors:
            os.close(each)


def _carry(packet: bytes, descriptors: list[int]) -> None:
    # A caller that makes gloo end the process would write what gloo says into the server's log.
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stderr.fileno())
    try:
        carry(
            CarrierOptions(**json.loads(packet)),
            socket.socket(fileno=descriptors[0]),
            descriptors[1],
        )
    finally:
        os._exit(0)


def _trouble(backend: str) -> str:
    """Return why carriers cannot have ``backend``, "" if they can."""
    there = dist.is_nccl_available() if backend == "nccl" else dist.is_gloo_available()
    return "" if there else f"this PyTorch has no {backend}"


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
