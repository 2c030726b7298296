"""The fuzz targets, briefly: a few damaged inputs of each, and a seeded run of libFuzzer."""

import importlib.util
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS, stretched

ROOT = Path(__file__).parents[2]
DAMAGED_PER_SEED = 20
RUNS = 4000


def damaged(seed: bytes, chance: random.Random) -> bytes:
    """Return ``seed`` with some bytes changed, cut or repeated."""
    content = bytearray(seed)
    for _ in range(chance.randint(0, 3)):
        content[chance.randrange(len(content))] = chance.randrange(256)
    if chance.random() < 0.3:
        del content[chance.randrange(len(content)) :]
    if chance.random() < 0.1:
        start, size, doublings = (chance.randrange(most) for most in (256, 256, 14))
        return stretched(bytes([*content, start, size, doublings, 1]))
    return bytes(content)


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_bytes_are_taken_or_refused_in_our_words(name: str) -> None:
    chance = random.Random(name)
    for seed in TARGETS[name].seeds():
        TARGETS[name].run(seed)
        for _ in range(DAMAGED_PER_SEED):
            TARGETS[name].run(damaged(seed, chance))


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("atheris"), reason="no atheris for this platform")
@pytest.mark.parametrize("name", TARGETS)
def test_a_seeded_run_of_libfuzzer_finds_nothing(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz", name, "-seed=1", f"-runs={RUNS}"]
    command += [f"-artifact_prefix={tmp_path}/"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
