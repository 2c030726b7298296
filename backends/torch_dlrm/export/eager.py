"""The FP32 model that an artifact was made of, in eager TorchRec, for comparisons. Needs torchrec.

``narsil parity`` and ``loadtest.accuracy`` find it by the entry point ``fp32`` of the group
``narsil.references``.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from backends.dlrm.manifest import WEIGHTS_FILE, Manifest, read_manifest
from backends.torch_dlrm.export.golden import OUTPUT, ROWS, golden_inputs, read_golden
from backends.torch_dlrm.export.presets import DlrmShape
from backends.torch_dlrm.export.quiet import quiet
from scheduler.errors import LoadError
from scheduler.types import Array

# FP32 sums may be added up in another order on another machine.
_SAME = 1e-5
_SEEDED = re.compile(r"seed (\d+)")


def fp32_scores(folder: Path, inputs: Mapping[str, Array]) -> Array:
    """Return the scores of one request by the FP32 weights of the model in ``folder``.

    Those that lie there, or those of its seed drawn again. Raises LoadError.
    """
    manifest = read_manifest(folder)
    weights, seeded = folder / WEIGHTS_FILE, _SEEDED.fullmatch(manifest.weights)
    if not weights.is_file() and not seeded:
        raise LoadError(f"{folder} has no {WEIGHTS_FILE}: narsil train keeps the FP32 weights")
    shape = _shape(manifest)
    with quiet():
        # Importing TorchRec warns.
        from backends.torch_dlrm.export.model import build, scores, seed_weights  # noqa: PLC0415
        from backends.torch_dlrm.export.state import read_state  # noqa: PLC0415

        dlrm = build(shape)
        if weights.is_file():
            dlrm.load_state_dict(read_state(weights, shape.features))
        elif seeded:
            seed = int(seeded[1])
            seed_weights(dlrm, seed, shape, golden_inputs(shape, ROWS, seed))
            _check_drawn(folder, scores(dlrm, shape, read_golden(folder).inputs).numpy())
        answer: Array = scores(dlrm, shape, inputs).numpy()
    return answer


def _shape(manifest: Manifest) -> DlrmShape:
    return DlrmShape(
        features=tuple(table.feature for table in manifest.tables),
        table_rows=tuple(table.rows for table in manifest.tables),
        dim=manifest.tables[0].dim,
        dense_names=manifest.dense_names,
        dense_layers=manifest.dense_layers,
        over_layers=manifest.over_layers,
        averaged=frozenset(t.feature for t in manifest.tables if t.pooling == "mean"),
    )


def _check_drawn(folder: Path, scores: Array) -> None:
    """Refuse weights drawn otherwise than at the export. Raises LoadError."""
    recorded = read_golden(folder).fp32[OUTPUT].astype(np.float64)
    apart = float(np.abs(scores.astype(np.float64) - recorded).max())
    if not apart <= _SAME:
        raise LoadError(
            f"{folder}: its seed gives other weights here, {apart:.1e} from the recorded scores; "
            "export it again"
        )
