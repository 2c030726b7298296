"""A torch.export program is served as a TorchScript artifact is, and no pickle in it runs."""

import io
import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backends.dlrm.manifest import (
    MODEL_FILE,
    PROGRAM_FILE,
    file_sha256,
    read_manifest,
    write_manifest,
)
from backends.torch_dlrm.answers import ANSWERS_FILE, write_answers
from backends.torch_dlrm.ask import answer
from backends.torch_dlrm.export.check import check_artifact
from backends.torch_dlrm.export.golden import OUTPUT, Golden
from backends.torch_dlrm.export.quiet import quiet
from backends.torch_dlrm.formats import read_weights
from backends.torch_dlrm.probes import TOLERANCE, difference
from backends.torch_dlrm.program import save_program
from backends.torch_dlrm.program_file import FACTS_FILE, read_program
from backends.torch_dlrm.recognise import NotRecognisedError
from backends.torch_dlrm.scores import vectors_of
from scheduler.errors import LoadError
from scheduler.types import Batch
from tests.fixtures.artifacts import load, take_rows
from tests.fixtures.native import plans
from tests.numerics.test_lean_plan import Touch

_save: Any = torch.save


@pytest.fixture(scope="module")
def folder(small_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``small_artifact`` as ``narsil export --format pt2`` leaves it."""
    folder = Path(shutil.copytree(small_artifact, tmp_path_factory.mktemp("program") / "small"))
    features = tuple(table.feature for table in read_manifest(folder).tables)
    dlrm = read_weights(folder / MODEL_FILE, verify=True)
    with quiet():
        save_program(dlrm, OUTPUT, features, folder / PROGRAM_FILE)
        write_answers(folder / ANSWERS_FILE, answer(folder / PROGRAM_FILE))
    (folder / MODEL_FILE).unlink()
    sha256 = file_sha256(folder / PROGRAM_FILE)
    write_manifest(folder, replace(read_manifest(folder), sha256=sha256))
    return folder


def test_a_program_scores_as_the_torchscript_it_was_made_of(folder: Path) -> None:
    assert check_artifact(folder).difference <= 1e-6


@pytest.mark.parametrize("rows", [0, 1, 2, 128])
def test_every_plan_of_a_program_scores_the_same(
    folder: Path, golden: Golden, kernel_cache: Path, rows: int
) -> None:
    batch = Batch((take_rows(golden.request(), 0, rows),))
    scores = []
    for plan in plans(kernel_cache):
        backend = load(folder, plan=plan, cache_dir=str(kernel_cache))
        assert backend.spec.properties["plan"] == plan
        scores.append(backend.prepare(batch)()[OUTPUT])
    assert all(difference(each, scores[0]) <= TOLERANCE for each in scores)


def test_a_bare_program_describes_itself(folder: Path) -> None:
    spec = load(folder / PROGRAM_FILE, plan="artifact", max_batch_rows=2).spec
    assert spec.name == "model"
    assert spec.inputs[0].shape == ("rows", 13)
    assert spec.inputs[1].labels == tuple(f"cat_{number}" for number in range(26))


def rewrite(source: Path, path: Path, change: Callable[[str, bytes], bytes]) -> None:
    """Write the records of ``source`` to ``path``, each as ``change`` makes it of name and data."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w") as new:
        for info in old.infolist():
            new.writestr(info.filename, change(info.filename, old.read(info)))


def with_facts(folder: Path, path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Write the program in ``folder`` to ``path``, its facts as ``change`` leaves them."""

    def changed(name: str, data: bytes) -> bytes:
        if not name.endswith(FACTS_FILE):
            return data
        facts = json.loads(data)
        change(facts)
        return json.dumps(facts).encode()

    rewrite(folder / PROGRAM_FILE, path, changed)


def test_the_kept_products_are_read_with_and_without_added_vectors(
    folder: Path, tmp_path: Path
) -> None:
    found, _ = read_program(folder / PROGRAM_FILE, verify=True)
    assert vectors_of(found.tables) == 28
    np.testing.assert_array_equal(found.pairs, np.stack(np.triu_indices(27, 1)))

    # A program of before says nothing of it: its products are numbered by the vectors it has.
    with_facts(folder, tmp_path / PROGRAM_FILE, lambda facts: facts.pop("vectors"))
    older, _ = read_program(tmp_path / PROGRAM_FILE, verify=False)
    first, second = found.pairs
    np.testing.assert_array_equal(older.pairs, np.divmod(first * 28 + second, 27))

    with_facts(folder, tmp_path / PROGRAM_FILE, lambda facts: facts.update(vectors=8))
    with pytest.raises(NotRecognisedError, match="products of vectors that it does not have"):
        read_program(tmp_path / PROGRAM_FILE, verify=False)


def pickled_weights(name: str, data: bytes, mark: Path) -> bytes:
    if name.endswith("model_weights_config.json"):
        config = json.loads(data)
        config["config"]["lookup.ends"]["use_pickle"] = True
        return json.dumps(config).encode()
    return data


def pickled_samples(name: str, data: bytes, mark: Path) -> bytes:
    if not name.endswith("sample_inputs/model.pt"):
        return data
    file = io.BytesIO()
    _save(Touch(mark), file)
    return file.getvalue()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (pickled_weights, "'lookup.ends' is pickled; pickles are not loaded"),
        (pickled_samples, "is no program this build loads"),
    ],
)
def test_a_program_with_a_pickle_that_runs_code_is_not_loaded(
    folder: Path, tmp_path: Path, change: Callable[[str, bytes, Path], bytes], complaint: str
) -> None:
    mark, path = tmp_path / "mark", tmp_path / PROGRAM_FILE
    rewrite(folder / PROGRAM_FILE, path, lambda name, data: change(name, data, mark))
    with pytest.raises(LoadError, match=complaint):
        load(path, plan="artifact")
    assert not mark.exists()


def test_a_truncated_program_is_refused(folder: Path, tmp_path: Path) -> None:
    data = (folder / PROGRAM_FILE).read_bytes()
    (tmp_path / PROGRAM_FILE).write_bytes(data[: len(data) // 2])
    with pytest.raises(LoadError):
        load(tmp_path / PROGRAM_FILE)
