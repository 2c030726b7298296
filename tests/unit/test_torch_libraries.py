"""PyTorch and FBGEMM as libraries: mapped beforehand, or not there."""

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from backends.torch_dlrm.backend import TorchDlrmBackend
from backends.torch_dlrm.options import TorchDlrmOptions
from scheduler.errors import LoadError

NEEDS_TORCH = "backends.torch_dlrm.device"


class Broken:
    """Be found in front of the real module, and fail as FBGEMM does."""

    def __init__(self, missing: str) -> None:
        self._missing = missing

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        del path, target
        if name == NEEDS_TORCH:
            cause = OSError(f"{self._missing}: cannot open shared object file")
            raise OSError("Could not load this library: fbgemm_gpu_py.so") from cause


@pytest.mark.parametrize(
    ("missing", "hinted"), [("libnvidia-ml.so.1", True), ("libcudart.so.13", False)]
)
def test_a_library_that_is_missing_is_named_and_so_is_the_driver_it_comes_with(
    missing: str, hinted: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delitem(sys.modules, NEEDS_TORCH, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(missing), *sys.meta_path])
    with pytest.raises(LoadError, match=f"cannot be loaded: {missing}: cannot open") as refused:
        TorchDlrmBackend(TorchDlrmOptions(path=str(tmp_path), device="cuda:0")).load()
    assert ("--gpus all" in str(refused.value)) == hinted


ALONE = """
import sys
from pathlib import Path
from backends.torch_dlrm.libraries import imported

with imported():
    print("torch" in sys.modules, "/libtorch_cpu.so" in Path("/proc/self/maps").read_text())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere the import does it all")
def test_the_libraries_of_a_cpu_build_are_mapped_before_python_imports_them() -> None:
    found = importlib.util.find_spec("torch")
    assert found is not None
    assert found.origin is not None
    cuda = Path(found.origin).with_name("lib") / "libtorch_cuda.so"
    done = subprocess.run(
        [sys.executable, "-c", ALONE], capture_output=True, text=True, check=True, timeout=100
    )
    assert done.stdout.split() == ["False", str(not cuda.exists())]
