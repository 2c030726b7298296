"""Recorded answers that are damaged are ignored with one warning, whatever the damage."""

import io
import logging
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.torch_dlrm.answers import Answers, read_answers, write_answers

SCORES = (np.zeros(0, np.float32), np.arange(3, dtype=np.float32))
ANSWERS = Answers("ab", "cd", "torch 2", "score", "cpu", SCORES, ("f", "g"))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the file is written that a test reads."""
    return tmp_path_factory.mktemp("answers") / "answers.npz"


def whole(path: Path) -> bytes:
    write_answers(path, ANSWERS)
    return path.read_bytes()


def changed(path: Path, name: str, record: bytes) -> None:
    """Write good answers to ``path``, all but the one record."""
    with zipfile.ZipFile(io.BytesIO(whole(path))) as good:
        records = {each: good.read(each) for each in good.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for each, data in (records | {f"{name}.npy": record}).items():
            archive.writestr(each, data)


def array(value: object) -> bytes:
    file = io.BytesIO()
    np.save(file, np.asarray(value))
    return file.getvalue()


def header(text: str) -> bytes:
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text.encode()


def test_what_is_written_is_read(path: Path) -> None:
    write_answers(path, ANSWERS)
    found = read_answers(path)
    assert found is not None
    assert (found.sha256, found.device, found.feature_names) == ("ab", "cpu", ("f", "g"))
    assert [scores.tolist() for scores in found.scores] == [[], [0.0, 1.0, 2.0]]


def test_a_file_that_is_absent_is_nothing_to_warn_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert read_answers(tmp_path / "absent.npz") is None
    assert not caplog.records


@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("rows", array([-1, 4])),
        ("rows", array([1.5, 1.5])),
        ("rows", array([[0, 3]])),
        ("rows", array([0, 2])),
        ("scores", array(np.arange(3.0))),
        ("scores", header("{'descr': '<f4', 'fortran_order': False, 'shape': (10**15,), }\n")),
        (
            "scores",
            header("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000,), }\n"),
        ),
        ("scores", header("'''\n")),
        ("scores", header("(" * 5000 + "\n")),
        ("texts", array(["a"] * 4)),
        ("texts", array(range(5))),
        ("texts", array(["a", "b", "c", "score", "toaster"])),
        ("feature_names", array("f")),
    ],
)
def test_a_record_that_says_something_else_is_ignored_with_one_warning(
    path: Path, caplog: pytest.LogCaptureFixture, name: str, record: bytes
) -> None:
    changed(path, name, record)
    with caplog.at_level(logging.WARNING):
        assert read_answers(path) is None
    (warning,) = caplog.messages
    assert f"{path} is ignored" in warning


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_changed_byte_is_ignored_or_changes_nothing_but_a_value(
    path: Path, data: st.DataObject
) -> None:
    content = bytearray(whole(path))
    directory = content.find(b"PK\1\2")
    position = data.draw(st.integers(0, 200) | st.integers(directory, len(content) - 1))
    content[position] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    found = read_answers(path)
    assert found is None or len(found.scores) == 2
