"""A process group of two ranks: the server's carrier (0) and its caller (1)."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store  # torch.distributed has it for no type checker

CARRIER, CALLER = 0, 1
_TAG = 1


@dataclass(frozen=True, slots=True)
class PairOptions:
    """How two ranks meet.

    ``address`` is that of the interface gloo listens on. Tensors are on ``device``: ``cpu`` for
    gloo, ``cuda:N`` for nccl. ``timeout_s`` bounds the meeting and each transfer.
    """

    backend: str
    rank: int
    address: str
    device: str
    timeout_s: float


class Pair:
    """Send to the other rank and receive from it, one flat uint8 tensor at a time; blocks."""

    def __init__(self, options: PairOptions, store: Store) -> None:
        self.device = torch.device(options.device)
        self._other = 1 - options.rank
        self._timeout = timedelta(seconds=options.timeout_s)
        make = _nccl if options.backend == "nccl" else _gloo
        self._group: Any = make(options, store, self._timeout)
        self._greet(options.rank)

    def send(self, tensor: torch.Tensor) -> None:
        """Send a tensor. Raises RuntimeError: the other is gone, or the time is up."""
        self._group.send([tensor], self._other, _TAG).wait(self._timeout)

    def receive(self, tensor: torch.Tensor) -> None:
        """Fill ``tensor`` with what the other sends, which may be shorter. Raises RuntimeError."""
        self._group.recv([tensor], self._other, _TAG).wait(self._timeout)

    def close(self) -> None:
        """Let go of the other."""
        self._group.abort()

    def _greet(self, rank: int) -> None:
        """Exchange a first tensor: NCCL meets no sooner, and nothing is to be met later."""
        greeting = torch.zeros(8, dtype=torch.uint8, device=self.device)
        first, second = (self.send, self.receive) if rank == CARRIER else (self.receive, self.send)
        first(greeting)
        second(greeting)


def _gloo(options: PairOptions, store: Store, timeout: timedelta) -> Any:
    gloo: Any = dist.ProcessGroupGloo
    settings = gloo._Options()  # noqa: SLF001 - has no other name; the only way to an interface
    settings._devices = [gloo.create_device(hostname=options.address)]  # noqa: SLF001 - as above
    settings._timeout = timeout  # noqa: SLF001 - as above
    settings._threads = 1  # noqa: SLF001 - as above
    return gloo(store, options.rank, 2, settings)


def _nccl(options: PairOptions, store: Store, timeout: timedelta) -> Any:
    nccl: Any = dist.ProcessGroupNCCL
    torch.cuda.set_device(options.device)
    settings = nccl.Options()
    settings._timeout = timeout  # noqa: SLF001 - has no other name
    return nccl(store, options.rank, 2, settings)
