"""A CUDA build where the driver's libraries are not."""

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
