"""How much of the first GPU's memory is in use, by whichever of NVIDIA's tools is there."""

import importlib
import subprocess
from typing import Any

_COMMAND = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0")


def used_mib() -> float:
    """Return the MiB in use on the device, by all processes; nan where nothing tells."""
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
        return float(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(0)).used >> 20)
    except ImportError:
        return _asked()
    except Exception:  # noqa: BLE001 - its errors are classes of its own, made as they come
        return _asked()


def _asked() -> float:
    try:
        done = subprocess.run(_COMMAND, capture_output=True, text=True, timeout=20, check=True)
        return float(done.stdout.split()[0])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return float("nan")
