"""Reloading a model again and again reaches a plateau of memory."""

import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from backends.torch_dlrm.export.presets import DlrmShape
from backends.torch_dlrm.export.quiet import quiet

# Dense weights of 9 MB: a graph that outlives its model shows.
WIDE = DlrmShape(("a", "b"), (100, 50), 64, ("x",) * 16, (1024, 1024, 64), (1024, 1024, 1))
# Eight leaked graphs between the middle of the second third and that of the last: 72 MB.
RELOADS = 24
MOST_GROWTH_MB = 40

RELOADING = """
import sys, threading
import numpy as np
from backends.torch_dlrm.backend import TorchDlrmBackend
from scheduler.types import Batch, InferRequest

path, dense = sys.argv[1:3]
request = InferRequest("", 256, {
    "float_features": np.zeros((256, 16), np.float32),
    "id_list_features.lengths": np.ones((2, 256), np.int64),
    "id_list_features.values": np.zeros(512, np.int64),
})
models = []

def load():
    options = TorchDlrmBackend.Options(path, lanes=2, plan="lean", dense=dense, max_batch_rows=512)
    models.append(TorchDlrmBackend(options))
    models[-1].load()

def serve():
    for _ in range(20):
        models[-1].prepare(Batch((request,)))()

def in_threads(count, work):
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

for _ in range(int(sys.argv[3])):
    # As a server does: the old one is there until the new one serves; lanes are new threads.
    in_threads(1, load)
    in_threads(3, serve)
    if len(models) > 1:
        models.pop(0).close()
    with open("/proc/self/smaps_rollup") as file:
        print(next(int(line.split()[1]) for line in file if line.startswith("Anonymous")))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("dense", ["fp32", "bf16"])
def test_reloads_reach_a_plateau_of_memory(tmp_path: Path, dense: str) -> None:
    with quiet():
        from backends.torch_dlrm.export.write import Order, export  # noqa: PLC0415

        export(Order(tmp_path / "model", WIDE, name="model"), lambda text: None)
    command = [sys.executable, "-c", RELOADING, str(tmp_path / "model"), dense, str(RELOADS)]
    # One arena for all threads: how many more malloc opens is up to how they happen to meet.
    alone = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(
        command, env=alone, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    used_mb = [int(line) / 1024 for line in done.stdout.split()]
    assert len(used_mb) == RELOADS
    third = RELOADS // 3
    before_mb, after_mb = (statistics.median(used_mb[n * third :][:third]) for n in (1, 2))
    assert after_mb - before_mb < MOST_GROWTH_MB, used_mb
