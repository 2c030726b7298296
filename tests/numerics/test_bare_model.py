"""A TorchScript file without a manifest, ours or from TorchRec's own packager."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from backends.dlrm.manifest import MODEL_FILE
from backends.torch_dlrm.export.golden import OUTPUT, Golden
from backends.torch_dlrm.export.quiet import quiet
from backends.torch_dlrm.torchscript import load_module
from scheduler.errors import LoadError
from scheduler.types import Batch
from tests.fixtures.artifacts import load

Tensors = dict[str, torch.Tensor]


def save(module: torch.nn.Module, path: Path) -> Path:
    with quiet():
        scripted: Any = torch.jit.script(module)
        scripted.save(path)
    return path


class Wrapped(torch.nn.Module):
    """Somebody's own class around the model, in the script that packs it."""

    __module__ = "__main__"

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Tensors):  # type: ignore[no-untyped-def]
        return self.model(batch)


class TwoColumns(torch.nn.Module):
    """Not a DLRM, but it keeps to the interface: scores (rows, 1) and (rows, 2)."""

    def forward(self, batch: Tensors) -> Tensors:
        sums = batch["float_features"].sum(1, keepdim=True)
        return {"narrow": sums, "wide": torch.cat([sums, -sums], 1)}


class OneScore(torch.nn.Module):
    """One score for the whole batch."""

    def forward(self, batch: Tensors) -> Tensors:
        return {"default": batch["float_features"].sum()}


class WrongInputs(torch.nn.Module):
    """Wants an input that a DLRM does not have."""

    def forward(self, batch: Tensors) -> Tensors:
        return {"default": batch["pixels"]}


FLAGS = {"feature_names": ("a", "b"), "table_rows": (3, 4), "dense_features": 2}


@pytest.mark.parametrize(
    "flags", [{}, {"name": "flagged", "feature_names": tuple("x" * n for n in range(1, 27))}]
)
def test_a_bare_artifact_scores_the_golden_batch(
    small_artifact: Path, golden: Golden, flags: dict[str, object]
) -> None:
    backend = load(small_artifact / MODEL_FILE, lanes=1, **flags)
    backend.check(golden.request())
    scores = backend.prepare(Batch((golden.request(),)))()[OUTPUT]
    assert np.abs(np.asarray(scores) - np.asarray(golden.served[OUTPUT])).max() <= 1e-6
    assert backend.spec.name == flags.get("name", "model")
    assert len(backend.spec.inputs[1].labels) == 26


def test_a_model_in_a_class_of_the_script_that_packed_it_has_a_plan(
    small_artifact: Path, golden: Golden, tmp_path: Path
) -> None:
    inner = load_module(small_artifact / MODEL_FILE, torch.device("cpu"))
    path = save(Wrapped(inner), tmp_path / "wrapped.pt")
    backend = load(path, lanes=1, feature_names=[f"cat_{number}" for number in range(26)])
    assert backend.spec.properties["plan"] in {"fused", "lean"}
    scores = backend.prepare(Batch((golden.request(),)))()[OUTPUT]
    assert np.abs(np.asarray(scores) - np.asarray(golden.served[OUTPUT])).max() <= 1e-6


@pytest.mark.parametrize("plan", ["auto", "artifact"])
def test_a_bare_file_that_is_damaged_is_refused(
    small_artifact: Path, tmp_path: Path, plan: str
) -> None:
    # PyTorch compares no checksums: it would serve what the tables have become.
    data = bytearray((small_artifact / MODEL_FILE).read_bytes())
    middle = len(data) // 2
    data[middle : middle + 4] = b"\xff" * 4
    (tmp_path / MODEL_FILE).write_bytes(data)
    with pytest.raises(LoadError, match=r"model\.pt: record .* is damaged"):
        load(tmp_path / MODEL_FILE, lanes=1, plan=plan)


@pytest.mark.slow
def test_a_file_of_torchrecs_own_packager_describes_itself(tmp_path: Path) -> None:
    with quiet():
        from torchrec.inference import dlrm_predict  # noqa: PLC0415

        names = [f"slot_{number}" for number in reversed(range(26))]
        rows = list(range(30, 56))
        sample = dlrm_predict.create_training_batch(
            SimpleNamespace(batch_size=4, num_embedding_features=30)
        )
        config = dlrm_predict.DLRMModelConfig(
            dense_arch_layer_sizes=[8, 4],
            dense_in_features=13,
            embedding_dim=4,
            id_list_features_keys=names,
            num_embeddings_per_feature=rows,
            num_embeddings=None,
            over_arch_layer_sizes=[8, 1],
            sample_input=sample,
        )
        factory = dlrm_predict.DLRMPredictFactory(config)
        factory.create_predict_module(world_size=1, device="cpu").save(tmp_path / "theirs.pt")
    spec = load(tmp_path / "theirs.pt", lanes=1, max_batch_rows=4).spec
    assert spec.name == "theirs"
    assert spec.inputs[0].shape == ("rows", 13)
    assert spec.inputs[1].labels == tuple(names)
    assert spec.properties["table_rows"] == " ".join(map(str, rows))
    assert spec.properties["plan"] in {"fused", "lean"}
    assert [output.name for output in spec.outputs] == ["default"]


def test_one_column_is_one_score_a_row_and_more_stay_columns(tmp_path: Path) -> None:
    spec = load(save(TwoColumns(), tmp_path / "two.pt"), max_batch_rows=2, **FLAGS).spec
    assert {output.name: output.shape for output in spec.outputs} == {
        "narrow": ("rows",),
        "wide": ("rows", 2),
    }


def test_only_the_wanted_outputs_are_served(tmp_path: Path) -> None:
    path = save(TwoColumns(), tmp_path / "two.pt")
    backend = load(path, max_batch_rows=2, outputs=("wide",), **FLAGS)
    assert [output.name for output in backend.spec.outputs] == ["wide"]
    with pytest.raises(LoadError, match="--outputs: the model has no output 'absent'"):
        load(path, max_batch_rows=2, outputs=("absent",), **FLAGS)


@pytest.mark.parametrize(
    ("module", "flags", "complaint"),
    [
        (TwoColumns, {}, "give --feature-names"),
        (OneScore, FLAGS, r"has shape \(\) for 2 rows"),
        (WrongInputs, FLAGS, "does not run as a TorchRec DLRM"),
        (TwoColumns, {**FLAGS, "device": "cuda:7"}, r"--device cuda:7: .* sees \d CUDA devices"),
        (TwoColumns, {**FLAGS, "device": "tpu"}, "--device tpu: use cpu or cuda:N"),
        (TwoColumns, {**FLAGS, "device": "meta"}, "--device meta: use cpu or cuda:N"),
    ],
)
def test_a_file_that_cannot_be_served_says_why(
    tmp_path: Path, module: type[torch.nn.Module], flags: dict[str, object], complaint: str
) -> None:
    path = save(module(), tmp_path / "odd.pt")
    with pytest.raises(LoadError, match=complaint):
        load(path, **flags)


def test_a_file_that_is_no_torchscript_is_a_load_error(tmp_path: Path) -> None:
    (tmp_path / "text.pt").write_text("not a model")
    torch.save({"weight": torch.zeros(3)}, tmp_path / "state.pt")
    with pytest.raises(LoadError, match=r"text\.pt is no TorchScript file: File is not a zip"):
        load(tmp_path / "text.pt")
    with pytest.raises(
        LoadError, match=r"\(state dict\) is not served as it is: narsil inspect .* --from"
    ):
        load(tmp_path / "state.pt")
