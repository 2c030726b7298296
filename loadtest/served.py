"""An artifact served by ``narsil serve`` in a process of its own, on free ports of the loopback."""

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from loadtest.closed import NoServerError

_HOST = "127.0.0.1"
_TRANSPORTS = ("http", "grpc", "http3")
_QUIET = ("--server-drain-delay-s=0", "--server-log-level=warning")
# As the banner has them.
_ADDRESS = re.compile(r"^  (http|grpc|http3) +(\S+)")


@dataclass(frozen=True, slots=True)
class Served:
    """Where it listens, by transport, the certificate to trust, and the process."""

    urls: dict[str, str]
    ca: str
    pid: int


@contextlib.contextmanager
def serving(artifact: Path, flags: Sequence[str] = ()) -> Iterator[Served]:
    """Serve ``artifact`` while the context lasts. Raises NoServerError if it does not start."""
    script = Path(sys.executable).with_name("narsil")
    with TemporaryDirectory() as folder:
        command = [str(script), "serve", str(artifact), f"--transports={','.join(_TRANSPORTS)}"]
        for name in _TRANSPORTS:
            command += [f"--{name}-host={_HOST}", f"--{name}-port=0"]
        command += [f"--http3-certificate-dir={folder}", *_QUIET, *flags]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                ca = str(Path(folder) / "certificate.pem")
                yield Served(_urls(process), ca, process.pid)
            finally:
                process.terminate()


def _urls(process: "subprocess.Popen[str]") -> dict[str, str]:
    """Return the addresses that it prints once it is ready."""
    assert process.stdout is not None
    urls: dict[str, str] = {}
    for line in process.stdout:
        if found := _ADDRESS.match(line):
            urls[found[1]] = found[2]
        if len(urls) == len(_TRANSPORTS):
            return urls
    raise NoServerError("narsil serve ended before it was ready; see above")
