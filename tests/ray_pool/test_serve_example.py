"""``examples/ray_serve.py``, as its users start it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from backends.torch_dlrm.backend import TorchDlrmBackend
from backends.torch_dlrm.export.golden import OUTPUT
from tests.e2e.test_native import expected

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
pytest.importorskip("ray.serve", reason="needs ray[serve]")

_ROOT = Path(__file__).parents[2]


@pytest.fixture
def served(small_artifact: Path, tmp_path: Path) -> Iterator[str]:
    """Return the URL of the example with one replica, on a cluster of its own."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    command = [sys.executable, "examples/ray_serve.py", str(small_artifact), "--port", str(port)]
    settings = {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(_ROOT)}
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            command,
            cwd=_ROOT,
            env={**os.environ, **settings},
            stdout=log,
            stderr=log,
            # In the background of a script SIGINT is ignored, by all that is started there.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        )
        try:
            _wait(process, f"http://127.0.0.1:{port}/v2/health/ready", tmp_path / "log")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def _wait(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    while process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError(log.read_text())


def test_the_whole_gateway_answers_as_a_deployment(
    served: str, small_artifact: Path, small_backend: TorchDlrmBackend
) -> None:
    body = (small_artifact / "example.json").read_bytes()
    with urllib.request.urlopen(_predict(served, body), timeout=30) as response:
        scores = json.load(response)["predictions"][OUTPUT]
    assert np.abs(np.array(scores) - expected(small_backend, json.loads(body))).max() <= 1e-6
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(_predict(served, b"[]"), timeout=30)
    with caught.value as refusal:
        assert refusal.code == 400


def _predict(served: str, body: bytes) -> urllib.request.Request:
    kind = {"content-type": "application/json"}
    return urllib.request.Request(f"{served}/v1/predict", body, kind)
