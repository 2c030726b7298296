"""What is told of a loaded model."""

import numpy as np

from backends.dlrm.artifact import Artifact
from backends.dlrm.gather import DENSE
from backends.torch_dlrm.artifact import Facts
from backends.torch_dlrm.libraries import libraries
from backends.torch_dlrm.plan import Plan
from scheduler.types import ModelSpec, TensorSpec


def spec_of(
    facts: Facts, outputs: tuple[TensorSpec, ...], rows: int, properties: dict[str, str]
) -> ModelSpec:
    """Return what clients are told of the model."""
    layout, ids = facts.layout, np.dtype(np.int64)
    features = len(layout.features)
    dense = TensorSpec(
        DENSE, np.dtype(np.float32), ("rows", facts.dense_features), facts.dense_names
    )
    return ModelSpec(
        name=facts.name,
        version=facts.version,
        inputs=(
            dense,
            TensorSpec(layout.lengths, ids, (features, "rows"), layout.features),
            TensorSpec(layout.values, ids, ("*",), lengths=layout.lengths),
        ),
        outputs=outputs,
        max_batch_rows=rows,
        properties=properties,
    )


def properties_of(artifact: Artifact, facts: Facts, plan: Plan) -> dict[str, str]:
    """Return what is known of the model besides its tensors."""
    reason = {"plan_reason": plan.reason} if plan.reason else {}
    return {
        "plan": plan.name,
        "dense": plan.dense,
        **reason,
        "table_rows": " ".join(str(rows) for rows in facts.layout.table_rows),
        "sha256": artifact.sha256,
        "weights": artifact.manifest.weights if artifact.manifest else "unknown",
        **libraries(),
    }
