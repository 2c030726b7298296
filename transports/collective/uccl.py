"""Where UCCL's network plug-in for NCCL is, if it can be of use here."""

import importlib.util
from pathlib import Path

_FILE = Path("lib") / "libnccl-net-uccl.so"
# Amazon's adapters, which need UCCL's own NCCL loaded in the place of PyTorch's.
_EFA = "rdmap"


def plugin_path(devices: Path) -> str:
    """Return the path of the plug-in. Raises OSError that says what is missing.

    ``devices`` is where the kernel lists RDMA devices. The package is found and not imported: it
    has a function that gives the path, but its import reads that folder and fails where there is
    none, and loads what needs CUDA.
    """
    spec = importlib.util.find_spec("uccl")
    if spec is None or spec.origin is None:
        raise OSError("nccl_plugin uccl: the package uccl is not installed: pip install uccl")
    path = Path(spec.origin).parent / _FILE
    if not path.is_file():
        raise OSError(f"nccl_plugin uccl: the package uccl has no {_FILE}: another build is needed")
    found = sorted(device.name for device in devices.iterdir()) if devices.is_dir() else []
    if not found:
        raise OSError(f"nccl_plugin uccl: this machine has no RDMA device ({devices} has none)")
    if any(name.startswith(_EFA) for name in found):
        raise OSError(
            "nccl_plugin uccl: EFA adapters need UCCL's NCCL preloaded into the server: set "
            "LD_PRELOAD and NCCL_NET_PLUGIN as UCCL's documentation says, and leave nccl_plugin out"
        )
    return str(path)
