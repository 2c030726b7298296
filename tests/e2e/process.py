"""A real ``narsil serve`` process on free ports."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

NARSIL = Path(sys.executable).with_name("narsil")
TRANSPORTS = ("http", "grpc", "http3", "admin")
ANY_PORTS = [f"--{name}-port=0" for name in TRANSPORTS]


@dataclass(frozen=True)
class Process:
    """A server that has printed its banner; ``urls`` is by transport."""

    popen: subprocess.Popen[str]
    banner: str
    folder: Path

    @property
    def urls(self) -> dict[str, str]:
        """The first address of each transport."""
        found = re.findall(r"^  (http|grpc|http3|admin) +(\S+)", self.banner, re.MULTILINE)
        return dict(found)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.popen.send_signal(signal.SIGTERM)

    def hang_up(self) -> None:
        """Send SIGHUP."""
        self.popen.send_signal(signal.SIGHUP)

    @property
    def log(self) -> str:
        """What the process has logged so far."""
        return (self.folder / "log").read_text()

    def wait(self) -> tuple[int, str]:
        """Return the exit code and the log once the process has ended."""
        self.popen.communicate(timeout=60)
        return self.popen.returncode, self.log


@contextmanager
def narsil_serve(
    folder: Path, arguments: Sequence[str], transports: Sequence[str] = TRANSPORTS
) -> Iterator[Process]:
    """Run ``narsil serve`` in ``folder`` until the block ends; it must be ready first."""
    chosen = [f"--transports={','.join(transports)}", *(f"--{name}-port=0" for name in transports)]
    with (folder / "log").open("w") as log:
        popen = subprocess.Popen(
            [NARSIL, "serve", *chosen, *arguments],
            cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
    try:
        yield Process(popen, _read_banner(popen, folder), folder)
    finally:
        popen.kill()
        popen.communicate()


def _read_banner(popen: subprocess.Popen[str], folder: Path) -> str:
    assert popen.stdout is not None
    lines = []
    for line in popen.stdout:
        lines.append(line)
        if "Try it:" in lines[-1]:
            break
    else:
        raise AssertionError(f"narsil serve ended: {(folder / 'log').read_text()}")
    for line in popen.stdout:
        lines.append(line)
        if not line.strip():
            break
    return "".join(lines)
