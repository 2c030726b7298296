"""What is no model of a backend's is told by what it is, and what to do with it."""

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from backends.dlrm.artifact import find_artifact
from backends.dlrm.kinds import Kind, check_served, kind_of
from backends.native_dlrm.source import find_source
from scheduler.errors import LoadError

Make = Callable[[Path], Path]


def plain(name: str) -> Make:
    """A file, of which the name is enough; or what is in a folder that has it."""

    def make(folder: Path) -> Path:
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"anything")
        return folder / Path(name).parts[0]

    return make


def zipped(*names: str) -> Make:
    """A zip of records of these names."""

    def make(folder: Path) -> Path:
        with zipfile.ZipFile(folder / "file.pt", "w") as archive:
            for name in names:
                archive.writestr(f"file/{name}", b"")
        return folder / "file.pt"

    return make


WEIGHTS = r"is not served as it is: narsil inspect {} says .*, narsil export DIR --from {} makes"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (plain("weights.safetensors"), WEIGHTS),
        (zipped("data.pkl", "data/0"), WEIGHTS),
        (plain("dcp/.metadata"), WEIGHTS),
        (plain("model.onnx"), r"{} \(ONNX model\) is served with --backend onnx_dlrm"),
        (plain("folder/model.onnx"), r"{} \(ONNX model\) is served with --backend onnx_dlrm"),
        (zipped(".data/extern_modules"), r"\(torch.package archive\) .*narsil inspect {} says"),
    ],
)
@pytest.mark.parametrize("find", [find_artifact, lambda path: find_source(path, verify=True)])
def test_what_no_backend_of_torchscript_serves_says_what_to_do(
    tmp_path: Path, make: Make, words: str, find: Callable[[str], object]
) -> None:
    path = make(tmp_path)
    with pytest.raises(LoadError, match=words.replace("{}", str(path))):
        find(str(path))


def test_a_folder_of_two_kinds_is_served_by_either_backend(tmp_path: Path) -> None:
    for name in ("model.pt", "model.onnx"):
        plain(name)(tmp_path)
    check_served(tmp_path, {Kind.ARTIFACT})
    check_served(tmp_path, {Kind.ONNX})


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pt")
    check_served(tmp_path / "pipe.pt", {Kind.ARTIFACT})
    with pytest.raises(LoadError, match=r"pipe\.pt is no file"):
        kind_of(tmp_path / "pipe.pt")
