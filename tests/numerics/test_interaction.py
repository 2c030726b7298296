"""Every kernel of the interaction against float64, where it runs; each says why where not."""

import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backends.kernels.interaction import KERNELS, available, choose
from scheduler.errors import LoadError
from tests.fixtures.interaction import SHAPES, assert_interaction, vectors_of

# Those of test_lookup_triton.py.
LOOKUP_TESTS = 5


@pytest.fixture(scope="module")
def why_off() -> dict[str, str]:
    """Why each kernel is off in this process."""
    return available()


def _numpy() -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    return np.asarray, np.asarray


def _torch() -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return lambda array: torch.from_numpy(array).to(device), lambda tensor: tensor.cpu().numpy()


def _cupy() -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    cupy = importlib.import_module("cupy")
    return cupy.asarray, cupy.asnumpy


LIBRARIES = {"numpy": _numpy, "torch": _torch, "torch or cupy": _torch, "cupy": _cupy}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_gives_the_products_of_every_pair(
    name: str, shape: tuple[int, int, int], why_off: dict[str, str]
) -> None:
    if why_off[name]:
        pytest.skip(f"{name} is off: {why_off[name]}")
    there, back = LIBRARIES[KERNELS[name].arrays]()
    dense, pooled = vectors_of(*shape)
    assert_interaction(back(choose(name)(there(dense), there(pooled))), dense, pooled)


@pytest.mark.parametrize("name", KERNELS)
def test_shapes_that_do_not_fit_are_refused(name: str, why_off: dict[str, str]) -> None:
    if why_off[name]:
        pytest.skip(f"{name} is off: {why_off[name]}")
    there, _ = LIBRARIES[KERNELS[name].arrays]()
    dense, pooled = vectors_of(3, 4, 8)
    with pytest.raises(ValueError, match=r"dense is \(2, 8\) and pooled \(3, 4, 8\)"):
        choose(name)(there(dense[:2]), there(pooled))


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="triton is not installed")
def test_the_triton_kernels_pass_in_its_interpreter() -> None:
    lookup = Path(__file__).with_name("test_lookup_triton.py")
    command = [sys.executable, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider",
               "-k", "triton and not interpreter", __file__, str(lookup)]  # fmt: skip
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout
    assert f"{len(SHAPES) + 1 + LOOKUP_TESTS} passed" in done.stdout
    assert "skipped" not in done.stdout


def test_a_kernel_that_is_off_says_why(why_off: dict[str, str]) -> None:
    assert why_off.keys() == KERNELS.keys()
    assert not why_off["numpy"]
    for name in (name for name, why in why_off.items() if why):
        with pytest.raises(LoadError, match=f"interaction kernel '{name}' is off: .{{20,}}"):
            choose(name)
    with pytest.raises(LoadError, match="no interaction kernel 'fast'; known: numpy, triton"):
        choose("fast")
