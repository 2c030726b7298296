"""``narsil inspect``: what it says of each kind of file, and that nothing in a file runs."""

import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.bring.convert import main as convert
from backends.bring.inspect import main as inspect
from backends.dlrm.kinds import METADATA_FILE, Kind, check_served
from backends.dlrm.manifest import MODEL_FILE, PROGRAM_FILE, read_manifest
from backends.torch_dlrm.export.golden import OUTPUT
from backends.torch_dlrm.export.quiet import quiet
from backends.torch_dlrm.formats import read_weights
from backends.torch_dlrm.program import save_program
from scheduler.errors import LoadError
from tests.fixtures.checkpoints import (
    FacebookDlrm,
    as_dcp,
    as_file,
    torchrec_model,
)


@pytest.fixture(scope="module")
def torchrec() -> torch.nn.Module:
    return torchrec_model()


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
        assert (inspect([str(path)]), convert([str(path), str(tmp_path / "out")])) == (1, 1)
        assert capsys.readouterr().err.count(str(path)) >= 2
    assert not marker.exists()


def test_a_damaged_dcp_folder_is_an_error(
    torchrec: torch.nn.Module, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = as_dcp(dict(torchrec.state_dict()), tmp_path)
    (piece,) = folder.glob("*.distcp")
    whole, index = piece.read_bytes(), (folder / METADATA_FILE).read_bytes()
    for damage in (
        lambda: piece.write_bytes(whole[: len(whole) // 2]),
        piece.unlink,
        lambda: (folder / METADATA_FILE).write_bytes(index[:-40]),
        lambda: (folder / METADATA_FILE).write_bytes(b""),
    ):
        damage()
        assert inspect([str(folder)]) == 1
        assert f"{folder} is no sound DCP checkpoint" in capsys.readouterr().err


def test_a_few_bytes_that_say_they_are_many_rows_are_an_error(
    torchrec: torch.nn.Module, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = dict(torchrec.state_dict())
    name = next(name for name in state if "embedding_bags" in name)
    torch.save({**state, name: torch.zeros(1, 4).expand(1 << 31, 4)}, tmp_path / "repeats.pt")
    assert inspect([str(tmp_path / "repeats.pt")]) == 1
    assert "repeats 16 bytes to 34359738368" in capsys.readouterr().err
    folder = as_dcp(state, tmp_path)
    index = folder / METADATA_FILE
    sizes = pickle.loads(index.read_bytes())
    sizes.state_dict_metadata[f"model.{name}"].size = torch.Size((1 << 31, 4))
    index.write_bytes(pickle.dumps(sizes))
    assert inspect([str(folder)]) == 1
    assert "has sizes (2147483648, 4), its pieces" in capsys.readouterr().err


def inspected(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what the command says, every run of spaces as one."""
    inspect([str(path)])
    return "".join(f"{' '.join(line.split())}\n" for line in capsys.readouterr().out.splitlines())


def test_inspect_tells_a_checkpoint_and_how_to_go_on(
    torchrec: torch.nn.Module,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = as_file(dict(torchrec.state_dict()), tmp_path)
    text = inspected(path, capsys)
    assert text.splitlines()[:5] == [
        "kind state dict (torch.save), named as TorchRec does",
        "tables 3, in the model's order",
        "size 7 x 4 fp32 sum",
        "brand 50 x 4 fp32 sum",
        "colour 20 x 4 fp32 sum",
    ]
    assert "dense 2 -> 6 -> 4\nover 10 -> 8 -> 1\n" in text
    assert f"next narsil convert {path} DIR" in text
    text = inspected(as_dcp(dict(torchrec.state_dict()), tmp_path), capsys)
    assert text.startswith("kind DCP checkpoint (torch.distributed.checkpoint), named as TorchRec")
    assert "named as TorchRec does\ntables 3, in no order: --features has to" in text
    assert "1 tensors are no part of the model: optimizer.m" in text
    text = inspected(as_file(dict(FacebookDlrm().state_dict()), tmp_path), capsys)
    assert "named as facebookresearch does" in text
    torch.save({"w": torch.ones(1)}, tmp_path / "weights.pt")
    assert inspect([str(tmp_path / "weights.pt")]) == 1
    assert "it has neither TorchRec's" in capsys.readouterr().out


def test_inspect_tells_our_own_folders_and_files(
    small_artifact: Path, onnx_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (small_artifact, small_artifact / "model.pt"):
        text = inspected(path, capsys)
        assert "tables 26, in wire order\ncat_0 1000 x 16 int8 sum\n" in text
        assert f"next narsil serve {path}\n" in text
    assert convert([str(small_artifact), str(tmp_path / "converted")]) == 0
    text = inspected(tmp_path / "converted", capsys)
    assert "kind converted folder of narsil convert\n" in text
    assert f"narsil serve {tmp_path / 'converted'} --backend native_dlrm" in text
    for path, words in (
        (tmp_path / "converted" / "model.safetensors", "is no checkpoint"),
        (small_artifact / "manifest.json", "is neither .onnx"),
        (small_artifact / "golden.npz", "is a zip, but nothing that PyTorch writes"),
    ):
        assert inspect([str(path)]) == 1
        said = capsys.readouterr().err
        assert words in said
        assert f"; it lies in {path.parent} (" in said
        with pytest.raises(LoadError, match="name that folder"):
            check_served(path, {Kind.TORCHSCRIPT})
    (tmp_path / "converted" / "model.pt").write_text("cut off")
    assert inspect([str(tmp_path / "converted" / "model.pt")]) == 1
    assert "name that folder" not in capsys.readouterr().err
    text = inspected(onnx_folder, capsys)
    assert "kind ONNX model\ntables 26, in wire order\ncat_0 1000 x ?\n" in text
    assert f"next narsil serve {onnx_folder} --backend onnx_dlrm" in text


def test_inspect_says_what_nobody_can_serve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with zipfile.ZipFile(tmp_path / "packaged.pt", "w") as archive:
        archive.writestr("packaged/.data/extern_modules", "")
        archive.writestr("packaged/model/model.pkl", pickle.dumps(Malice(tmp_path / "ran")))
    assert "kind torch.package archive" in inspected(tmp_path / "packaged.pt", capsys)
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


def test_a_torch_export_program_is_told(
    small_artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dlrm = read_weights(small_artifact / MODEL_FILE, verify=True)
    features = tuple(table.feature for table in read_manifest(small_artifact).tables)
    with quiet():
        save_program(dlrm, OUTPUT, features, tmp_path / PROGRAM_FILE)
    text = inspected(tmp_path / PROGRAM_FILE, capsys)
    assert "kind torch.export program\ntables 26, in wire order\ncat_0 1000 x 16 int8 sum\n" in text
    assert "dense 13 -> 64 -> 32 -> 16\n" in text
    assert f"next narsil serve {tmp_path / PROGRAM_FILE}" in text
