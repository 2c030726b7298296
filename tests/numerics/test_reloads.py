"""A model that is loaded anew in its own place leaves nothing of the one before, time and again."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.numerics.reloads import RELOADS, Held

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BACKENDS = ("native_dlrm", "torch_dlrm", "torch_dlrm:lean")
# PyTorch keeps the types and graphs of what it has compiled, about 0.6 MB a lean load whatever the
# size of the model; one of these models takes 1.5 MB (native_dlrm) or 3.2 MB.
MOST_BYTES_A_RELOAD = 800_000


def held(backend: str, folder: Path, *flags: str) -> list[Held]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.numerics.reloads", backend, str(folder), *flags],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [Held(**json.loads(line)) for line in done.stdout.splitlines()]


def grown_bytes(seen: list[Held]) -> float:
    """Return by how much malloc's bytes grew a reload; the first two make what stays."""
    return (seen[-1].malloc_bytes - seen[1].malloc_bytes) / (len(seen) - 2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_reloads_leave_one_model_its_memory_and_its_mapped_file(
    small_artifact: Path, backend: str
) -> None:
    seen = held(backend, small_artifact)
    assert [one.models for one in seen] == [1] * RELOADS
    assert {one.mapped_bytes for one in seen} == {seen[0].mapped_bytes}
    assert seen[0].mapped_bytes > 0
    assert grown_bytes(seen) < MOST_BYTES_A_RELOAD


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_leak_of_models_is_seen_by_each_of_the_three_measures(
    small_artifact: Path, backend: str
) -> None:
    seen = held(backend, small_artifact, "--retain")
    assert [one.models for one in seen] == [*range(1, RELOADS + 1)]
    assert seen[-1].mapped_bytes == RELOADS * seen[0].mapped_bytes
    assert grown_bytes(seen) > MOST_BYTES_A_RELOAD
