"""Checkpoints that others trained, converted, served and compared with the eager model."""

import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from backends.bring.convert import main as convert
from backends.bring.inspect import main as inspect
from backends.checkpoints.dcp import METADATA_FILE
from backends.torch_dlrm.export.command import main as export
from backends.torch_dlrm.export.golden import OUTPUT
from scheduler.types import Array, Batch, InferRequest
from tests.contract.every_wire import every_wire
from tests.fixtures.artifacts import load
from tests.fixtures.checkpoints import (
    FEATURES,
    FacebookDlrm,
    State,
    a_request,
    facebook_scores,
    save_dcp,
    seeded,
    torchrec_model,
    torchrec_scores,
)
from tests.fixtures.native import load_native
from tests.fixtures.serving import AlreadyLoaded, serving

NAMED = ("--features", ",".join(FEATURES))
TABLES = "sparse_arch.embedding_bag_collection.embedding_bags"


@pytest.fixture(scope="module")
def torchrec() -> torch.nn.Module:
    return torchrec_model()


@pytest.fixture(scope="module")
def facebook() -> FacebookDlrm:
    model = FacebookDlrm()
    seeded(model, 4)
    return model


def scores_of(backend: Any, request: InferRequest) -> Array:
    assert backend.check(request) is None
    found: Array = backend.prepare(Batch((request,)))()[OUTPUT]
    return found


def served(folder: Path, cache: Path) -> Array:
    return scores_of(load_native(folder, cache, lanes=1, max_batch_rows=16), a_request())


def as_file(state: State, path: Path) -> Path:
    torch.save(state, path / "weights.pt")
    return path / "weights.pt"


def as_wrapped(state: State, path: Path) -> Path:
    renamed = {f"module.model.{name}": tensor for name, tensor in state.items()}
    torch.save({"epoch": 3, "model": renamed}, path / "weights.pt")
    return path / "weights.pt"


def as_safetensors(state: State, path: Path) -> Path:
    save_file(state, path / "weights.safetensors")
    return path / "weights.safetensors"


def as_dcp(state: State, path: Path) -> Path:
    return save_dcp({"model": state, "step": 7, "optimizer": {"m": torch.ones(2)}}, path / "dcp")


@pytest.mark.parametrize("save", [as_file, as_wrapped, as_safetensors, as_dcp])
def test_torchrecs_weights_score_as_torchrec_does(
    torchrec: torch.nn.Module,
    kernel_cache: Path,
    tmp_path: Path,
    save: Callable[[State, Path], Path],
) -> None:
    path = save(dict(torchrec.state_dict()), tmp_path)
    assert convert([str(path), str(tmp_path / "out"), *NAMED]) == 0
    expected = torchrec_scores(torchrec, a_request())
    assert expected.std() > 0.05
    np.testing.assert_allclose(served(tmp_path / "out", kernel_cache), expected, atol=1e-6)


def test_facebooks_weights_score_as_a_plain_forward_does(
    facebook: FacebookDlrm, kernel_cache: Path, tmp_path: Path
) -> None:
    torch.save({"epoch": 1, "state_dict": facebook.state_dict()}, tmp_path / "dlrm.pt")
    assert convert([str(tmp_path / "dlrm.pt"), str(tmp_path / "out")]) == 0
    expected = facebook_scores(facebook, a_request())
    assert expected.std() > 0.05
    np.testing.assert_allclose(served(tmp_path / "out", kernel_cache), expected, atol=1e-6)


async def test_a_converted_checkpoint_is_served_over_every_wire(
    facebook: FacebookDlrm, kernel_cache: Path, tmp_path: Path, certificates: Path
) -> None:
    path = as_file(dict(facebook.state_dict()), tmp_path)
    assert convert([str(path), str(tmp_path / "out"), *NAMED, "--name", "mine"]) == 0
    backend = load_native(tmp_path / "out", kernel_cache, lanes=1, max_batch_rows=16)
    assert (backend.spec.name, backend.spec.input("id_list_features.lengths").labels) == (  # type: ignore[union-attr]  # it has
        "mine",
        FEATURES,
    )
    expected = facebook_scores(facebook, a_request())
    async with serving(AlreadyLoaded(backend), certificates) as running:
        async with every_wire(running) as wires:
            for name, wire in wires.items():
                outcome = await wire.ask(a_request())
                found = np.frombuffer(outcome.scores, np.float32)
                np.testing.assert_allclose(found, expected, atol=1e-6, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("naming", ["torchrec", "facebook"])
def test_an_exported_checkpoint_scores_within_int8(
    torchrec: torch.nn.Module, facebook: FacebookDlrm, tmp_path: Path, naming: str
) -> None:
    model = torchrec if naming == "torchrec" else facebook
    path = as_file(dict(model.state_dict()), tmp_path)
    assert export([str(tmp_path / "out"), "--from", str(path), *NAMED]) == 0
    backend = load(tmp_path / "out", lanes=1, max_batch_rows=16)
    if naming == "torchrec":
        expected = torchrec_scores(torchrec, a_request())
    else:
        expected = facebook_scores(facebook, a_request())
    np.testing.assert_allclose(scores_of(backend, a_request()), expected, atol=0.02)


def test_the_order_of_tables_is_asked_for_where_a_file_has_none(
    torchrec: torch.nn.Module, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for save in (as_safetensors, as_dcp):
        path = save(dict(torchrec.state_dict()), tmp_path)
        assert convert([str(path), str(tmp_path / "out")]) == 1
        assert "does not keep the order of its tables" in capsys.readouterr().err
        wrong = ("--features", "size,brand,color")
        assert convert([str(path), str(tmp_path / "out"), *wrong]) == 1
        assert "--features are not the 3 tables': color, colour" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def change(state: State, **changed: Any) -> State:
    return {**state, **{name.replace("__", "."): tensor for name, tensor in changed.items()}}


REFUSED = [
    ({"top_l__0__weight": torch.ones(8, 14)},
     "arch-interaction-itself) would, and is not served"),
    ({"top_l__0__weight": torch.ones(8, 16)},
     "a concatenation (arch-interaction-op=cat) would, and is not served"),
    ({"emb_l__4__weight": torch.ones(3, 4)}, "emb_l has 4 tables, but not numbered 0..3"),
    ({"v_W_l__0": torch.ones(3)}, "has unexpected v_W_l.0"),
    ({"bot_l__0__bias": torch.ones(2)}, "a dense layer has 2 biases for 6 outputs"),
    ({"top_l__2__weight": torch.full((1, 8), torch.nan)}, "has values that are not finite"),
    ({"emb_l__0__weight": torch.ones(7, 4).half()}, "emb_l.0.weight is float16; give the FP32"),
    ({"emb_l__0__weight": torch.ones(7, 4).bfloat16()}, "emb_l.0.weight is torch.bfloat16"),
]  # fmt: skip


def test_weights_that_are_another_model_are_named(
    facebook: FacebookDlrm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for changed, words in REFUSED:
        path = as_file(change(dict(facebook.state_dict()), **changed), tmp_path)
        assert convert([str(path), str(tmp_path / "out")]) == 1
        assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


class Malice:
    """Touches a file when it is unpickled without a restriction."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self._marker,)


def test_nothing_pickled_in_a_checkpoint_runs(
    torchrec: torch.nn.Module, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marker = tmp_path / "ran"
    torch.save({"weights": Malice(marker)}, tmp_path / "evil.pt")
    folder = as_dcp(dict(torchrec.state_dict()), tmp_path)
    (folder / METADATA_FILE).write_bytes(pickle.dumps(Malice(marker)))
    for path in (tmp_path / "evil.pt", folder):
        for command in (lambda: inspect([str(path)]), lambda: convert([str(path), "out"])):
            assert command() == 1
            assert str(path) in capsys.readouterr().err
    assert not marker.exists()


def test_a_damaged_dcp_folder_is_an_error(
    torchrec: torch.nn.Module, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = as_dcp(dict(torchrec.state_dict()), tmp_path)
    (piece,) = folder.glob("*.distcp")
    whole, index = piece.read_bytes(), (folder / METADATA_FILE).read_bytes()
    for damage in (
        lambda: piece.write_bytes(whole[: len(whole) // 2]),
        lambda: piece.unlink(),
        lambda: (folder / METADATA_FILE).write_bytes(index[:-40]),
        lambda: (folder / METADATA_FILE).write_bytes(b""),
    ):
        damage()
        assert inspect([str(folder)]) == 1
        assert f"{folder} is no sound DCP checkpoint" in capsys.readouterr().err


def inspected(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    inspect([str(path)])
    return capsys.readouterr().out


def test_inspect_tells_a_checkpoint_and_how_to_go_on(
    torchrec: torch.nn.Module,
    facebook: FacebookDlrm,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = as_file(dict(torchrec.state_dict()), tmp_path)
    text = inspected(path, capsys)
    assert text.splitlines()[:5] == [
        "kind      state dict (torch.save), named as TorchRec does",
        "tables    3, in the model's order",
        "  size           7 x 4  fp32  sum",
        "  brand         50 x 4  fp32  sum",
        "  colour        20 x 4  fp32  sum",
    ]
    assert "dense     2 -> 6 -> 4\nover      10 -> 8 -> 1\n" in text
    assert f"next      narsil convert {path} DIR" in text
    text = inspected(as_dcp(dict(torchrec.state_dict()), tmp_path), capsys)
    assert "named as TorchRec does\ntables    3, in no order: --features has to" in text
    assert "1 tensors are no part of the model: optimizer.m" in text
    text = inspected(as_file(dict(facebook.state_dict()), tmp_path), capsys)
    assert "named as facebookresearch does" in text
    torch.save({"w": torch.ones(1)}, tmp_path / "weights.pt")
    assert inspect([str(tmp_path / "weights.pt")]) == 1
    assert "missing   it has neither TorchRec's" in capsys.readouterr().out


def test_inspect_tells_our_own_folders_and_files(
    small_artifact: Path, onnx_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (small_artifact, small_artifact / "model.pt"):
        text = inspected(path, capsys)
        assert "tables    26, in wire order\n  cat_0       1000 x 16  int8  sum\n" in text
        assert f"next      narsil serve {path}\n" in text
    assert convert([str(small_artifact), str(tmp_path / "converted")]) == 0
    text = inspected(tmp_path / "converted", capsys)
    assert "kind      converted folder of narsil convert\n" in text
    assert f"narsil serve {tmp_path / 'converted'} --backend native_dlrm" in text
    text = inspected(onnx_folder, capsys)
    assert "kind      ONNX model\ntables    26, in wire order\n  cat_0       1000 x ?\n" in text
    assert f"next      narsil serve {onnx_folder} --backend onnx_dlrm" in text


def test_inspect_says_what_nobody_can_serve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with zipfile.ZipFile(tmp_path / "packaged.pt", "w") as archive:
        archive.writestr("packaged/.data/extern_modules", "")
        archive.writestr("packaged/model/model.pkl", pickle.dumps(Malice(tmp_path / "ran")))
    assert "kind      torch.package archive" in inspected(tmp_path / "packaged.pt", capsys)
    (tmp_path / "text.pt").write_text("hello")
    (tmp_path / "empty").mkdir()
    for name, words in (
        ("missing.pt", "does not exist"),
        ("text.pt", "is neither .onnx, .safetensors nor a zip"),
        ("empty", "is no folder of a model"),
    ):
        assert inspect([str(tmp_path / name)]) == 1
        assert words in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
