"""AOTInductor packages (.pt2): a DLRM's forward as machine code of the CPU that compiled it.

PyTorch's Python binding holds Python's lock while such a package runs: no other lane, no event loop
moves meanwhile. And the code in it is run as it is. So one is served only where it is asked for.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from backends.dlrm.gather import DENSE, IDS
from backends.torch_dlrm.device import Module
from backends.torch_dlrm.program import export_program
from backends.torch_dlrm.weights import Dlrm
from scheduler.errors import LoadError

_MODEL = "model"
_OPTIONS = {
    # As many threads as the process sets when it runs, not those of the machine that compiles.
    "cpp.dynamic_threads": True,
}


def save_compiled(dlrm: Dlrm, output: str, features: tuple[str, ...], path: Path) -> None:
    """Compile ``dlrm`` for this CPU and write the package to ``path``; takes a minute or two.

    Raises LoadError without a C++ compiler.
    """
    from torch._inductor import aoti_compile_and_package  # noqa: PLC0415

    compile_package: Any = aoti_compile_and_package
    program = export_program(dlrm, output, features)
    try:
        with torch.no_grad(), tempfile.TemporaryDirectory(dir=path.parent) as place:
            # The package's top folder is called as its first file was.
            made = Path(place) / f"{_MODEL}.pt2"
            compile_package(program, package_path=str(made), inductor_configs=_OPTIONS)
            made.replace(path)
    except RuntimeError as error:
        why = " ".join(str(error).split())
        raise LoadError(f"AOTInductor needs a C++ compiler (g++) here: {why:.300}") from error


def load_compiled(path: Path) -> Module:
    """Load the package at ``path``; its code runs in this process. Raises LoadError."""
    # Nothing else needs the compiler's half second of imports.
    from torch._inductor import aoti_load_package  # noqa: PLC0415

    load: Any = aoti_load_package
    try:
        package = load(str(path))
        keys = json.loads(json.loads(package.loader.get_call_spec()[1])[1]["context"])
        names = [str(name) for name in keys]
        run = package.loader.boxed_run
    except (RuntimeError, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        why = str(error).strip().partition("\n")[0]
        raise LoadError(f"{path} is no AOTInductor package this build loads: {why}") from error

    def forward(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        outputs: list[torch.Tensor] = run(
            [inputs[DENSE], inputs[f"{IDS}.lengths"], inputs[f"{IDS}.values"]]
        )
        return dict(zip(names, outputs, strict=True))

    return forward
