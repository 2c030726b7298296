import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import save_file

from backends.dlrm.manifest import read_manifest
from backends.torch_dlrm.export.check import check_artifact
from backends.torch_dlrm.export.command import main
from backends.torch_dlrm.export.golden import OUTPUT, read_golden
from backends.torch_dlrm.export.presets import DlrmShape
from backends.torch_dlrm.export.quiet import quiet
from scheduler.types import Array

TABLE = "sparse_arch.embedding_bag_collection.embedding_bags.t_{}.weight"
# Table order is not alphabetical, as safetensors would have it.
TINY = DlrmShape(
    features=("size", "brand", "colour"),
    table_rows=(7, 50, 20),
    dim=4,
    dense_names=("int_0", "int_1"),
    dense_layers=(8, 4),
    over_layers=(8, 6, 1),
)
State = dict[str, torch.Tensor]
Floats = npt.NDArray[np.float64]


@pytest.fixture
def state() -> State:
    """The weights of a trained model, as far as an exporter can tell."""
    with quiet():
        from backends.torch_dlrm.export.model import build  # noqa: PLC0415

    torch.manual_seed(3)
    # Halved: of logits in the tens the rounding alone, which is another on each CPU, is over 1e-6.
    shapes = {key: tensor.shape for key, tensor in build(TINY).state_dict().items()}
    return {key: torch.randn(shape) / 2 for key, shape in shapes.items()}


def export_state(state: State, folder: Path, *more: str) -> int:
    weights = folder / "weights.safetensors"
    save_file(state, weights)
    features = ",".join(TINY.features)
    return main([str(folder / "out"), "--state-dict", str(weights), "--features", features, *more])


def test_the_artifact_folder_tells_everything_about_itself(small_artifact: Path) -> None:
    manifest = read_manifest(small_artifact)
    assert (manifest.name, manifest.version, manifest.outputs) == ("small", "1", ("default",))
    assert [(table.rows, table.dim, table.pooling) for table in manifest.tables] == [
        (1000, 16, "sum")
    ] * 26
    assert manifest.tables[25].feature == "cat_25"
    assert manifest.dense_layers == (64, 32, 16)
    assert manifest.over_layers == (64, 32, 1)
    assert manifest.score_std >= 0.05
    assert set(manifest.libraries) == {"torch", "fbgemm_gpu", "torchrec"}


def test_the_golden_batch_has_empty_and_multi_hot_bags_and_the_last_ids(
    small_artifact: Path,
) -> None:
    inputs = read_golden(small_artifact).inputs
    lengths = np.asarray(inputs["id_list_features.lengths"])
    ids = np.asarray(inputs["id_list_features.values"])
    assert set(lengths.ravel().tolist()) == {0, 1, 2, 5}
    for table in np.split(ids, np.cumsum(lengths.sum(axis=1))[:-1]):
        assert {0, 999} <= set(table.tolist())


def test_the_example_is_a_request_of_three_rows(small_artifact: Path) -> None:
    example = json.loads((small_artifact / "example.json").read_text())
    assert [len(row) for row in example["float_features"]] == [13] * 3
    assert list(example["id_list_features"]) == [f"cat_{number}" for number in range(26)]
    bags = [bag for rows in example["id_list_features"].values() for bag in rows]
    assert len(bags) == 26 * 3
    assert {len(bag) for bag in bags} >= {0, 1, 2}
    assert all(0 <= one < 1000 for bag in bags for one in bag)


def test_trained_weights_are_the_ones_served(state: State, tmp_path: Path) -> None:
    assert export_state(state, tmp_path, "--name", "tiny", "--version", "9") == 0
    manifest = read_manifest(tmp_path / "out")
    assert (manifest.name, manifest.version) == ("tiny", "9")
    assert [(table.feature, table.rows) for table in manifest.tables] == [
        ("size", 7),
        ("brand", 50),
        ("colour", 20),
    ]
    assert check_artifact(tmp_path / "out").passed
    golden = read_golden(tmp_path / "out")
    np.testing.assert_allclose(
        np.asarray(golden.fp32[OUTPUT], np.float64), plain_scores(state, golden.inputs), atol=1e-5
    )


def plain_scores(state: State, inputs: Mapping[str, Array]) -> Floats:
    """Score row by row with nothing but matrix products, from the paper's formula."""
    weights = {key: tensor.double().numpy() for key, tensor in state.items()}
    arrays: dict[str, npt.NDArray[Any]] = dict(inputs)

    def layer(name: str, x: Floats) -> Floats:
        product: Floats = weights[f"{name}.weight"] @ x + weights[f"{name}.bias"]
        return product

    lengths = arrays["id_list_features.lengths"]
    ends = np.cumsum(lengths).reshape(lengths.shape)
    logits = []
    for row, dense in enumerate(arrays["float_features"]):
        x = dense
        for number in range(2):
            x = np.maximum(layer(f"dense_arch.model._mlp.{number}._linear", x), 0)
        vectors = [x]
        for feature, name in enumerate(TINY.features):
            end = ends[feature, row]
            ids = arrays["id_list_features.values"][end - lengths[feature, row] : end]
            vectors.append(weights[TABLE.format(name)][ids].sum(axis=0))
        pairs = [vectors[i] @ vectors[j] for i in range(4) for j in range(i + 1, 4)]
        y = np.concatenate([x, pairs])
        for number in range(2):
            y = np.maximum(layer(f"over_arch.model.0._mlp.{number}._linear", y), 0)
        logits.append(layer("over_arch.model.1", y)[0])
    scores: Floats = 1 / (1 + np.exp(-np.array(logits)))
    return scores


def test_a_training_wrappers_prefix_is_stripped_and_torch_files_are_read(
    state: State, tmp_path: Path
) -> None:
    torch.save({f"module.model.{key}": tensor for key, tensor in state.items()}, tmp_path / "w.pt")
    features = ",".join(TINY.features)
    arguments = [str(tmp_path / "out"), "--state-dict", str(tmp_path / "w.pt")]
    assert main([*arguments, "--features", features]) == 0
    assert check_artifact(tmp_path / "out").passed


@pytest.mark.parametrize(
    ("key", "tensor", "complaint"),
    [
        (TABLE.format("brand"), None, "interaction of 2 tables gives 7, that of 3 tables 10"),
        ("over_arch.model.1.bias", None, "lacks over_arch.model.1.bias"),
        ("dense_arch.model._mlp.0._linear.weight", None, "lacks dense_arch.model._mlp.0"),
        ("cross.weight", torch.ones(1), "has unexpected cross.weight"),
        (TABLE.format("size"), torch.ones(7, 5), "table 't_size' is 5 wide, the dense vector 4"),
        ("over_arch.model.1.bias", torch.ones(2), "an over layer has 2 biases for 1 outputs"),
        (TABLE.format("size"), torch.ones(7, 4).half(), "is float16; give the FP32"),
        (TABLE.format("size"), torch.full((7, 4), torch.inf), "that are not finite"),
    ],
)
def test_weights_that_do_not_fit_are_named(
    state: State,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    key: str,
    tensor: torch.Tensor | None,
    complaint: str,
) -> None:
    state.pop(key, None)
    if tensor is not None:
        state[key] = tensor
    assert export_state(state, tmp_path) == 1
    assert complaint in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["weights.safetensors"]


@pytest.mark.parametrize("name", ["missing.pt", "text.pt", "text.safetensors", "list.pt"])
def test_a_file_that_holds_no_weights_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    if name.startswith("text"):
        (tmp_path / name).write_text("hello")
    if name.startswith("list"):
        torch.save([torch.ones(1)], tmp_path / name)
    assert main([str(tmp_path / "out"), "--state-dict", str(tmp_path / name)]) == 1
    assert f"{name}" in capsys.readouterr().err


def test_what_exists_is_replaced_only_if_it_is_an_artifact_and_asked_to(
    state: State, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious.txt").write_text("mine")
    assert export_state(state, tmp_path, "--force") == 1
    assert "--force replaces an artifact, and nothing else" in capsys.readouterr().err
    (tmp_path / "out" / "precious.txt").rename(tmp_path / "out" / "manifest.json")
    assert export_state(state, tmp_path) == 1
    assert export_state(state, tmp_path, "--force") == 0
    assert check_artifact(tmp_path / "out").passed


def test_a_name_that_does_not_fit_a_url_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "out"), "--name", "a/b"]) == 1
    assert "--name 'a/b'" in capsys.readouterr().err


def test_features_without_weights_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "out"), "--features", "a,b"]) == 1
    assert "--features goes with --from" in capsys.readouterr().err


def test_weights_that_are_not_there_are_missed_before_pytorch_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "out"), "--from", str(tmp_path / "gone.pt")]) == 1
    assert "gone.pt: no such file or folder" in capsys.readouterr().err


def test_a_device_that_is_not_here_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "out"), "--device", "cuda:99"]) == 1
    assert "--device cuda:99" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_folder_that_exists_is_refused_before_pytorch_is_loaded(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None;"
        "from backends.torch_dlrm.export.command import main;"
        f"sys.exit(main([{str(tmp_path)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "exists; --force replaces an artifact, and nothing else" in done.stderr


@pytest.mark.slow
def test_without_torchrec_the_command_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torchrec'] = None;"
        "from backends.torch_dlrm.export.command import main;"
        f"sys.exit(main([{str(tmp_path / 'out')!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install --no-deps torchrec==1.8.0" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_reference_preset_exports_and_passes_its_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "reference")]) == 0
    assert "wrote" in capsys.readouterr().err
    assert main([str(tmp_path / "reference"), "--check"]) == 0
    manifest = read_manifest(tmp_path / "reference")
    assert [(table.rows, table.dim) for table in manifest.tables] == [(100_000, 64)] * 26
    assert manifest.over_layers == (512, 512, 256, 1)
