"""Load a model file to run as it came: TorchScript (.pt), torch.export and AOTI (.pt2)."""

from pathlib import Path

import torch

from backends.torch_dlrm.artifact import Derived
from backends.torch_dlrm.compiled_program import load_compiled
from backends.torch_dlrm.device import Module
from backends.torch_dlrm.program import load_program
from backends.torch_dlrm.program_file import PROGRAM_SUFFIX, is_compiled, read_program
from backends.torch_dlrm.recognise import NotRecognisedError
from backends.torch_dlrm.torchscript import derive, load_module
from scheduler.errors import LoadError


def load_model(path: Path, device: torch.device) -> tuple[Module, Derived]:
    """Load the file at ``path`` to run as it came, and what it says. Raises LoadError."""
    if path.suffix != PROGRAM_SUFFIX:
        module = load_module(path, device)
        return module, derive(module)
    if device.type != "cpu":
        raise LoadError(f"--device {device}: a {PROGRAM_SUFFIX} program runs on the CPU")
    if is_compiled(path):
        return load_compiled(path), Derived((), (), 0, "cpu")
    return load_program(path), _of_program(path)


def _of_program(path: Path) -> Derived:
    try:
        dlrm, features = read_program(path, verify=False)
    except NotRecognisedError:
        return Derived((), (), 0, "cpu")
    return Derived(features, tuple(dlrm.tables.rows.tolist()), dlrm.dense_features, "cpu")
