"""What SECURITY.md says of TorchScript: an artifact is a program, and loading it runs it."""

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from app.signatures import sign, verify
from backends.dlrm.manifest import MODEL_FILE
from backends.native_dlrm.backend import NativeDlrmBackend
from backends.native_dlrm.options import NativeDlrmOptions
from backends.torch_dlrm.export.quiet import quiet
from backends.torch_dlrm.torchscript import load_module
from scheduler.errors import LoadError

MARK = "written by the artifact"
_script: Callable[..., torch.jit.ScriptModule] = torch.jit.script

_export: Callable[..., Any] = torch.jit.export


class Program(torch.nn.Module):
    """No Python is called: aten::from_file maps a file for writing, and makes it if need be."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Do nothing."""
        return x

    @_export
    def __getstate__(self) -> bool:
        return self.training

    @_export
    def __setstate__(self, state: bool) -> None:
        mapped = torch.from_file("written by the artifact", True, 4, dtype=torch.uint8)
        self.training = state and bool(mapped.fill_(65).any())


@pytest.fixture
def malicious(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A TorchScript file of which loading writes a file into the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    path = tmp_path / "model" / MODEL_FILE
    with quiet():
        _script(Program()).save(path)
    assert not Path(MARK).exists()
    return path


def test_loading_a_torchscript_file_runs_its_program_which_may_write_files(malicious: Path) -> None:
    load_module(malicious, torch.device("cpu"))
    assert Path(MARK).read_bytes() == b"AAAA"


def test_native_dlrm_runs_nothing_of_the_same_file(malicious: Path) -> None:
    backend = NativeDlrmBackend(NativeDlrmOptions(str(malicious)))
    with pytest.raises(LoadError):
        backend.load()
    assert not Path(MARK).exists()


def test_where_artifacts_are_signed_it_is_refused_before_it_is_read(malicious: Path) -> None:
    trusted = Ed25519PrivateKey.generate()
    with zipfile.ZipFile(malicious) as archive:
        assert archive.testzip() is None  # it is no damaged file
    with pytest.raises(LoadError, match="SHA256SUMS cannot be read"):
        verify(malicious, [trusted.public_key()])
    sign(malicious.parent, Ed25519PrivateKey.generate())
    with pytest.raises(LoadError, match="none of the 1 artifact_keys"):
        verify(malicious, [trusted.public_key()])
    assert not Path(MARK).exists()
