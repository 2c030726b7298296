"""The FP32 model that an artifact was made of, in eager TorchRec, for comparisons. Needs torchrec.

``narsil parity`` finds it by the entry point ``fp32`` of the group ``narsil.references``.
"""

from collections.abc import Mapping
from pathlib import Path

from backends.dlrm.manifest import WEIGHTS_FILE, read_manifest
from backends.torch_dlrm.export.presets import DlrmShape
from backends.torch_dlrm.export.quiet import quiet
from scheduler.errors import LoadError
from scheduler.types import Array


def fp32_scores(folder: Path, inputs: Mapping[str, Array]) -> Array:
    """Return the scores of one request by the FP32 weights in ``folder``. Raises LoadError."""
    manifest = read_manifest(folder)
    weights = folder / WEIGHTS_FILE
    if not weights.is_file():
        raise LoadError(f"{folder} has no {WEIGHTS_FILE}: narsil train keeps the FP32 weights")
    shape = DlrmShape(
        features=tuple(table.feature for table in manifest.tables),
        table_rows=tuple(table.rows for table in manifest.tables),
        dim=manifest.tables[0].dim,
        dense_names=manifest.dense_names,
        dense_layers=manifest.dense_layers,
        over_layers=manifest.over_layers,
    )
    with quiet():
        # Importing TorchRec warns.
        from backends.torch_dlrm.export.model import build, scores  # noqa: PLC0415
        from backends.torch_dlrm.export.state import read_state  # noqa: PLC0415

        dlrm = build(shape)
        dlrm.load_state_dict(read_state(weights, shape.features))
        answer: Array = scores(dlrm, shape, inputs).numpy()
    return answer
