"""``python -m backends.torch_dlrm.gpu.report``: which device and libraries there are, as JSON."""

import importlib.util
import json
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from backends.torch_dlrm.gpu.hardware import Gpu

_PACKAGES = (
    "torch", "fbgemm-gpu", "fbgemm-gpu-cpu", "triton", "cuda-tile", "cupy-cuda13x", "torchrec",
)  # fmt: skip


def main() -> int:
    """Print it."""
    found: dict[str, Any] = {name: _version(name) for name in _PACKAGES}
    found |= {"python": platform.python_version(), "cuda": torch.cuda.is_available()}
    if found["cuda"]:
        device = torch.cuda.get_device_properties(0)
        found |= {
            "gpu": str(device.name),
            "gpu_mib_all": int(device.total_memory >> 20),
            "capability": f"{device.major}.{device.minor}",
            "cuda_version": str(torch.version.cuda),
        }
    found["fbgemm_cuda"] = bool(found["cuda"]) and _has_lookup()
    sys.stdout.write(json.dumps({key: value for key, value in found.items() if value != ""}) + "\n")
    return 0


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _has_lookup() -> bool:
    """Return whether FBGEMM's build has the lookup for CUDA."""
    if importlib.util.find_spec("fbgemm_gpu") is None:
        return False
    return Gpu(torch.device("cuda", 0)).has_lookup()


if __name__ == "__main__":
    sys.exit(main())
