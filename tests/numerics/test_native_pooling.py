"""Bags that are averaged, and tables in several lookups, score as the artifact scores them."""

from pathlib import Path

import numpy as np
import torch

from backends.native_dlrm.source import find_source
from backends.torch_dlrm.export.golden import OUTPUT, golden_inputs
from backends.torch_dlrm.export.presets import DlrmShape, numbered
from backends.torch_dlrm.export.quiet import quiet
from scheduler.types import Array, Batch, InferRequest
from tests.fixtures.native import load_native

SHAPE = DlrmShape(numbered("cat", 5), (50, 60, 70, 80, 90), 8, numbered("int", 4), (16, 8), (16, 1))
AVERAGED = {"cat_1", "cat_3"}


def artifact_scores(path: Path, inputs: dict[str, Array]) -> Array:
    """Write a model whose tables are pooled in two ways; return its own scores."""
    with quiet():
        # Importing TorchRec warns, and here a warning is an error.
        from torchrec.modules.embedding_configs import PoolingType  # noqa: PLC0415

        from backends.torch_dlrm.export import model  # noqa: PLC0415

        dlrm = model.build(SHAPE)
        for config in dlrm.sparse_arch.embedding_bag_collection.embedding_bag_configs():
            if config.feature_names[0] in AVERAGED:
                config.pooling = PoolingType.MEAN
        model.seed_weights(dlrm, 0, SHAPE, inputs)
        scripted = model.package(dlrm, SHAPE, torch.device("cpu"), inputs)
        scripted.save(path)
        with torch.inference_mode():
            scores: Array = scripted(model.tensors(inputs, torch.device("cpu")))[OUTPUT].numpy()
    return scores


def test_tables_pooled_in_two_ways_score_as_the_artifact(
    tmp_path: Path, kernel_cache: Path
) -> None:
    inputs = golden_inputs(SHAPE, 64, seed=1)
    expected = artifact_scores(tmp_path / "mixed.pt", inputs).astype(np.float64)
    backend = load_native(tmp_path / "mixed.pt", kernel_cache, lanes=1)
    scores = backend.prepare(Batch((InferRequest("", 64, inputs),)))()[OUTPUT]
    tables = find_source(str(tmp_path / "mixed.pt"), verify=False).dlrm.tables
    assert {table.feature for table in tables if table.mean} == AVERAGED
    assert expected.std() >= 0.05
    assert np.abs(scores.astype(np.float64) - expected).max() <= 1e-6
