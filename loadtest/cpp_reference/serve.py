"""Serve an artifact with the C++ yardstick: ``python -m loadtest.cpp_reference.serve ARTIFACT``."""

import argparse
import contextlib
import importlib.util
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from scheduler.ended import how_ended

BINARY = Path("build/cpp_reference/cpp_reference")
MODEL_FILE = "model.pt"
# FBGEMM's operators, each library after those it needs.
LIBRARIES = (
    "config",
    "tbe_utils",
    "tbe_index_select",
    "tbe_cache",
    "tbe_optimizers",
    "tbe_inference",
    "tbe_training_forward",
    "tbe_training_backward",
    "tbe_training_backward_pt2",
    "tbe_training_backward_dense",
    "tbe_training_backward_split_host",
    "tbe_training_backward_gwd",
    "tbe_training_backward_vbe",
    "py",
)


class YardstickError(Exception):
    """The yardstick cannot be started; the text says why."""


@contextlib.contextmanager
def serving(artifact: Path, port: int = 0, threads: int = 1) -> Iterator[str]:
    """Serve ``artifact`` in a process of its own while the context lasts; yield its URL.

    ``threads`` is what each forward may use. Raises YardstickError.
    """
    if not BINARY.is_file():
        raise YardstickError(f"{BINARY} is missing: run make cpp-reference")
    command = [str(BINARY.resolve()), _model(artifact), f"127.0.0.1:{port}", str(threads)]
    with subprocess.Popen([*command, _libraries()], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield f"grpc://127.0.0.1:{_port(process)}"
        finally:
            process.terminate()


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.cpp_reference.serve")
    shown = "(default: %(default)s)"
    parser.add_argument("artifact", type=Path, help="artifact folder, or a TorchScript file")
    parser.add_argument("--port", type=int, default=50052, help=shown)
    parser.add_argument("--threads", type=int, default=1, help=f"a forward {shown}")
    arguments = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with serving(arguments.artifact, arguments.port, arguments.threads) as url:
            print(f"the C++ yardstick serves {arguments.artifact} at {url}", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()
    except YardstickError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _model(artifact: Path) -> str:
    return str(artifact / MODEL_FILE if artifact.is_dir() else artifact)


def _libraries() -> str:
    found = importlib.util.find_spec("fbgemm_gpu")
    if found is None or found.origin is None:
        raise YardstickError("FBGEMM is not installed: its operators run the artifact")
    folder = Path(found.origin).parent
    return ":".join(str(folder / f"fbgemm_gpu_{name}.so") for name in LIBRARIES)


def _port(process: "subprocess.Popen[str]") -> int:
    """Return the port that it says it listens on."""
    assert process.stdout is not None
    *_, port = process.stdout.readline().split() or [""]
    if not port.isdigit():
        raise YardstickError(f"the yardstick {how_ended(process.wait())}; see above")
    return int(port)


if __name__ == "__main__":
    raise SystemExit(main())
