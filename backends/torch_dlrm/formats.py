"""The formats of a model file behind one door: TorchScript (.pt), torch.export and AOTI (.pt2)."""

from pathlib import Path

from backends.torch_dlrm.program_file import PROGRAM_SUFFIX, read_program
from backends.torch_dlrm.recognise import recognise
from backends.torch_dlrm.weights import Dlrm
from backends.torchscript_file.reader import read_torchscript


def read_weights(path: Path, *, verify: bool) -> Dlrm:
    """Return the weights in the file at ``path``, as views, without running anything of it.

    ``verify`` compares the checksums. Raises NotRecognisedError or LoadError.
    """
    if path.suffix == PROGRAM_SUFFIX:
        return read_program(path, verify=verify)[0]
    return recognise(read_torchscript(path, verify=verify).root)
