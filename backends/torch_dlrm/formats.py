"""The formats of a model file behind one door: TorchScript (.pt), torch.export and AOTI (.pt2)."""

from pathlib import Path

import torch

from backends.torch_dlrm.artifact import Derived
from backends.torch_dlrm.compiled_program import load_compiled
from backends.torch_dlrm.device import Module
from backends.torch_dlrm.program import load_program
from backends.torch_dlrm.program_file import PROGRAM_SUFFIX, is_compiled, read_program
from backends.torch_dlrm.recognise import NotRecognisedError, recognise
from backends.torch_dlrm.torchscript import derive, load_module
from backends.torch_dlrm.weights import Dlrm
from backends.torchscript_file.reader import read_torchscript
from scheduler.errors import LoadError


def read_weights(path: Path, *, verify: bool) -> Dlrm:
    """Return the weights in the file at ``path``, as views, without running anything of it.

    ``verify`` compares the checksums. Raises NotRecognisedError or LoadError.
    """
    if path.suffix == PROGRAM_SUFFIX:
        return read_program(path, verify=verify)[0]
    return recognise(read_torchscript(path, verify=verify).root)


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
