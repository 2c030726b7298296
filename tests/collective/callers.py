"""Callers of the collective transport as real processes, forked at a line's notice.

Run as a script: each line on stdin is JSON, ``{"peer": N, "act": NAME, "address": ..., ...}``; a
process is forked that acts so. Lines on stdout say what the peers do: ``{"peer": N, ...}``.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from scheduler.errors import ServingError
from tests.fixtures.gates import make_request
from transports.collective.client import CollectiveClient
from transports.collective.framing import encode
from transports.collective.messages import Ask, Failure, Message, Proceed, TensorHead

# Says what a peer does.
Say = Callable[..., None]
Told = Mapping[str, Any]


class _Liar(CollectiveClient):
    """A client that says and sends what it likes."""

    def announce(self, size_bytes: int) -> Message:
        """Ask with one flat tensor of so many bytes, the trailer included; return the reply."""
        head = TensorHead("x", "UINT8", (size_bytes - 8,))
        self._socket.sendall(encode(Ask(1, (head,), "", "", "", "", (), 0, None)))
        try:
            return self._next(time.monotonic() + 30)
        except ServingError as error:
            return Failure(1, error.code.value, error.detail, None)

    def send(self, size_bytes: int) -> None:
        """Send so many bytes."""
        self._pair.send(torch.zeros(size_bytes, dtype=torch.uint8))

    def outcome(self) -> dict[str, Any]:
        """Return how the server answers, or that it hangs up."""
        try:
            self._next(time.monotonic() + 30)
        except ServingError as error:
            return {"code": error.code.value, "detail": error.detail}
        except OSError:
            return {"code": "hung up", "detail": ""}
        return {"code": "answered", "detail": ""}


def predict(told: Told, say: Say) -> None:
    """Ask ``times`` for the scores of ``rows``, each of a seed of its own."""
    with CollectiveClient(told["address"], api_key=told.get("api_key", "")) as client:
        for seed in range(told["seed"], told["seed"] + told.get("times", 1)):
            inputs = make_request(told["rows"], seed).inputs
            say(asking=seed)
            scores = client.predict(inputs, timeout_s=told.get("timeout_s"))["default"]
            say(seed=seed, scores=scores.tolist())


def lie(told: Told, say: Say) -> None:
    """Announce and send as many bytes as told."""
    with _Liar(told["address"]) as client:
        reply = client.announce(told["announced_bytes"])
        if isinstance(reply, Proceed):
            say(proceed=True)
            client.send(told["sent_bytes"])
            say(**client.outcome())
        elif isinstance(reply, Failure):
            say(code=reply.code, detail=reply.detail)


def stall(told: Told, say: Say) -> None:
    """Announce tensors and never send them."""
    with _Liar(told["address"]) as client:
        assert isinstance(client.announce(told["announced_bytes"]), Proceed)
        say(proceed=True)
        say(**client.outcome())


def example(told: Told, say: Say) -> None:
    """Run ``source``, an example of the documentation."""
    names: dict[str, Any] = {}
    exec(told["source"], names)
    say(scores=names["scores"].tolist())


ACTS: dict[str, Callable[[Told, Say], None]] = {
    "predict": predict,
    "lie": lie,
    "stall": stall,
    "example": example,
}


def _act(told: Told) -> None:
    def say(**what: Any) -> None:
        os.write(1, json.dumps({"peer": told["peer"], **what}).encode() + b"\n")

    say(pid=os.getpid())
    try:
        ACTS[told["act"]](told, say)
    except ServingError as error:
        say(code=error.code.value, detail=error.detail)
    finally:
        say(ended=True)


def main() -> None:
    """Fork a peer a line."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print(json.dumps({"peer": 0, "ready": True}), flush=True)
    for line in iter(sys.stdin.readline, ""):
        if os.fork() == 0:
            try:
                _act(json.loads(line))
            finally:
                os._exit(0)


if __name__ == "__main__":
    main()
