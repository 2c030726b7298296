"""What a version's golden batch must be, and what it says when it is not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.repository.golden import FILE, prove
from app.repository.plan import GoldenOptions
from app.repository.version import Proven, model_path
from backends.fake import FakeBackend, FakeOptions
from scheduler.backend import Updatable
from scheduler.errors import LoadError
from tests.fixtures.gates import make_request
from tests.fixtures.updatable import UpdatableFake, delta

REQUEST = make_request(5, seed=3)
BACKEND = FakeBackend(FakeOptions(max_batch_rows=2))
SCORES = np.asarray(BACKEND.score(REQUEST), np.float32)


def write(folder: Path, **arrays: Any) -> None:
    np.savez(folder / FILE, **{**REQUEST.inputs, **arrays})


def check(folder: Path, **options: Any) -> None:
    prove(BACKEND, BACKEND.spec, folder, GoldenOptions(**options))


@pytest.mark.parametrize("prefix", ["served", "int8", "expected", "fp32"])
def test_right_scores_pass_though_the_batch_is_larger_than_the_models(
    tmp_path: Path, prefix: str
) -> None:
    write(tmp_path, **{f"{prefix}.default": SCORES})
    check(tmp_path)


def test_the_scores_of_the_artifact_count_before_those_it_was_made_from(tmp_path: Path) -> None:
    write(tmp_path, **{"served.default": SCORES, "fp32.default": SCORES + 1})
    check(tmp_path)


def test_a_difference_within_the_tolerance_passes(tmp_path: Path) -> None:
    write(tmp_path, **{"int8.default": SCORES + np.float32(0.25)})
    check(tmp_path, tolerance=0.5)
    with pytest.raises(LoadError, match=r"differ by 0.25 from golden.npz, above .* of 0.1"):
        check(tmp_path, tolerance=0.1)


def test_without_a_batch_a_version_is_served_unless_there_has_to_be_one(tmp_path: Path) -> None:
    check(tmp_path)
    with pytest.raises(LoadError, match=r"no golden.npz, and golden.required is set"):
        check(tmp_path, required=True)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({}, "no scores for the outputs"),
        ({"int8.other": SCORES}, "no scores for the outputs"),
        ({"int8.default": SCORES[:2]}, r"shape \[5\], expected \[2\]"),
        ({"int8.default": SCORES * np.float32("nan")}, "differ by nan"),
        ({"float_features": np.ones((5, 9), np.float32)}, "no request for this model: float_"),
        ({"float_features": np.ones((0, 3), np.float32)}, "no rows|no scores"),
        ({"id_list_features.values": np.full(99, 10**6)}, "no request for this model"),
        ({"int8.default": np.array([{}], object)}, "cannot read golden.npz"),
    ],
)
def test_a_batch_that_is_no_batch_for_the_model_is_refused(
    tmp_path: Path, arrays: dict[str, Any], words: str
) -> None:
    scores = {} if "scores" in words else {"int8.default": SCORES}
    write(tmp_path, **{**scores, **arrays})
    with pytest.raises(LoadError, match=words):
        check(tmp_path)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    for data in (b"", b"half a file", b"PK\x03\x04" + bytes(100)):
        (tmp_path / FILE).write_bytes(data)
        with pytest.raises(LoadError, match=r"cannot read golden.npz"):
            check(tmp_path)


def test_a_version_is_served_by_the_names_of_its_folder_and_closed_if_it_is_not_proven(
    tmp_path: Path,
) -> None:
    closed: list[str] = []
    backend = FakeBackend(FakeOptions(name="own"))
    backend.close = lambda: closed.append("close")  # type: ignore[method-assign]
    version = Proven(backend, ("ranking", "7"), tmp_path, GoldenOptions(), lambda: True)
    version.load()
    assert (version.spec.name, version.spec.version) == ("ranking", "7")
    changed = Proven(backend, ("ranking", "7"), tmp_path, GoldenOptions(), lambda: False)
    with pytest.raises(LoadError, match="changed while it was loaded"):
        changed.load()
    assert closed == ["close"]


def test_a_backend_is_given_the_folder_or_the_lone_model_file_in_it(tmp_path: Path) -> None:
    assert model_path(tmp_path) == tmp_path
    file = tmp_path / "dlrm.pt"
    file.touch()
    assert model_path(tmp_path) == file
    (tmp_path / "manifest.json").touch()
    assert model_path(tmp_path) == tmp_path
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "other.pt").touch()
    assert model_path(tmp_path) == tmp_path


def test_a_version_takes_embedding_updates_if_its_backend_does(tmp_path: Path) -> None:
    def proven(backend: FakeBackend) -> object:
        return Proven(backend, ("ranking", "7"), tmp_path, GoldenOptions(), lambda: True)

    assert not isinstance(proven(FakeBackend(FakeOptions())), Updatable)
    backend = UpdatableFake()
    version = proven(backend)
    assert isinstance(version, Updatable)
    version.prepare_update(delta().tables)()
    assert version.update_tables() == backend.update_tables()
    assert backend.stored["cat_0"][1:3].all()
    assert version.roll_back() == 2
