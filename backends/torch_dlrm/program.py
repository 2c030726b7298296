"""torch.export programs: make one of a DLRM's weights, load one as it came."""

import io
import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import torch

from backends.dlrm.gather import DENSE, IDS
from backends.torch_dlrm.device import Module
from backends.torch_dlrm.program_file import FACTS_FILE, refuse_pickles
from backends.torch_dlrm.scores import Lookup, Scores, vectors_of
from backends.torch_dlrm.weights import Dlrm
from backends.torchscript_file.archive import Archive
from scheduler.errors import LoadError

_SAMPLES = "data/sample_inputs/model.pt"
_MOST_ROWS, _MOST_IDS = 1 << 24, 1 << 40
_load: Any = torch.load
_export: Any = torch.export


class _Program(torch.nn.Module):
    """The forward as it is exported: (dense, lengths, ids) -> {output: scores}."""

    def __init__(self, dlrm: Dlrm, output: str) -> None:
        super().__init__()
        self.lookup, self.scores = Lookup(dlrm.tables), Scores(dlrm)
        self.block: torch.Tensor
        self.register_buffer("block", torch.tensor(dlrm.tables.block))
        self._output = output

    def forward(
        self, dense: torch.Tensor, lengths: torch.Tensor, ids: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Return the scores (rows,)."""
        return {self._output: self.scores(dense, self.lookup(lengths, ids, self.block))}


def export_program(dlrm: Dlrm, output: str, features: tuple[str, ...]) -> Any:
    """Return ``dlrm`` as a torch.export program for any number of rows and ids."""
    rows, ids = _export.Dim("rows", min=0, max=_MOST_ROWS), _export.Dim("ids", min=0, max=_MOST_IDS)
    count = len(features)
    inputs = (
        torch.zeros(4, dlrm.dense_features),
        torch.ones(4 * count, dtype=torch.int32),
        torch.zeros(4 * count, dtype=torch.int32),
    )
    return _export.export(
        _Program(dlrm, output).eval(),
        inputs,
        dynamic_shapes=({0: rows}, {0: count * rows}, {0: ids}),
    )


def save_program(dlrm: Dlrm, output: str, features: tuple[str, ...], path: Path) -> None:
    """Export ``dlrm`` and write it to ``path``."""
    program, tables = export_program(dlrm, output, features), dlrm.tables
    facts = {
        "dim": tables.dim,
        "pooling": tables.pooling,
        "row_alignment": tables.row_alignment,
        "vectors": vectors_of(tables),
        "table_rows": tables.rows.tolist(),
        "features": list(features),
    }
    _export.save(program, path, extra_files={FACTS_FILE: json.dumps(facts)})


def load_program(path: Path) -> Module:
    """Load the program at ``path`` to run as it came, on the CPU. Raises LoadError.

    PyTorch's loader falls back to an unrestricted unpickler in two places, so what it would
    unpickle is looked at before.
    """
    refuse_pickles(path)
    try:
        samples = Archive(path).read(_SAMPLES)
        _load(io.BytesIO(samples), weights_only=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Without the guards: they refuse 0 rows and 1, which the operators take.
            module = _export.load(path).module(check_guards=False)
    except (RuntimeError, ValueError, OSError, KeyError, pickle.UnpicklingError) as error:
        raise LoadError(f"{path} is no program this build loads: {error}") from error

    def forward(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        outputs: dict[str, torch.Tensor] = module(
            inputs[DENSE], inputs[f"{IDS}.lengths"], inputs[f"{IDS}.values"]
        )
        return outputs

    return forward
