"""The peers: how each is started and asked."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from loadtest.ask import ask_all
from loadtest.closed import NoServerError, RequestFailedError
from loadtest.encodings import Encoding
from loadtest.peers.wording import LISTED, OPEN_INFERENCE, PLAIN, Wording
from loadtest.wires.base import Target
from loadtest.wires.http1 import Http1Wire

ROOT = Path(__file__).parents[2]
HOME = ROOT / ".peers"
_PATIENCE_S, _LOOK_S = 90.0, 0.5


@dataclass(frozen=True, slots=True)
class Peer:
    """One server: where it takes requests, and in which encoding, its best, and words."""

    name: str
    path: str
    encoding: Encoding
    wording: Wording = PLAIN

    @property
    def content_type(self) -> str:
        """Return that of the requests."""
        return "application/json" if self.encoding == "json" else "application/octet-stream"

    @property
    def wire(self) -> str:
        """Return Narsil's wire with the same bodies."""
        return "http-json" if self.encoding == "json" else "http"


PEERS: Mapping[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("bentoml", "/predict", "json", LISTED),
        Peer("litserve", "/predict", "json"),
        Peer("mlserver", "/v2/models/ranker/infer", "json", OPEN_INFERENCE),
        Peer("mosec", "/inference", "protobuf"),
        Peer("ray", "/predict", "protobuf"),
    )
}


class PeerError(Exception):
    """A peer is not installed, did not start or answers wrongly; says so in one sentence."""


@contextlib.contextmanager
def serving(peer: Peer, artifact: Path, body: bytes) -> Iterator[Target]:
    """Serve ``artifact`` with ``peer`` until the end; it is ready when it answers ``body``.

    Raises PeerError.
    """
    python = HOME / peer.name / "bin" / "python"
    if not python.exists():
        raise PeerError(f"{peer.name} is not installed: make peer PEER={peer.name}")
    port = _free_port()
    script = ROOT / "loadtest" / "peers" / peer.name / "server.py"
    command = [str(python), str(script), str(artifact.resolve()), str(port)]
    log = (HOME / f"{peer.name}.log").open("wb")
    environment = {"PYTHONPATH": str(ROOT), "PATH": f"{python.parent}:/usr/bin:/bin"}
    # A session of its own: some leave their workers behind when they are told to stop.
    with (
        log,
        subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        ) as process,
    ):
        try:
            headers = {"content-type": peer.content_type}
            target = Target("127.0.0.1", port, peer.path, headers)
            _wait(peer, process, target, body)
            yield target
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _wait(peer: Peer, process: "subprocess.Popen[bytes]", target: Target, body: bytes) -> None:
    end_s = time.monotonic() + _PATIENCE_S
    why = "no answer"
    while time.monotonic() < end_s and process.poll() is None:
        try:
            wire = Http1Wire(target)
            try:
                ask_all(wire, [body])
                return
            finally:
                wire.close()
        except (NoServerError, RequestFailedError) as error:
            why = str(error)
            time.sleep(_LOOK_S)
    raise PeerError(f"{peer.name} did not start ({why}); see .peers/{peer.name}.log")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
