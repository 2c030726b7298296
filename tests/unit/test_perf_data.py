"""``narsil perf-data``: the rows that perf_analyzer sends."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest import perf_data
from loadtest.workload import ModelShape

MANIFEST = {
    "dense_names": ["a", "b"],
    "tables": [{"feature": "x", "rows": 5}, {"feature": "y", "rows": 100_000}],
}


@given(st.lists(st.integers(1, 2**40), min_size=1, max_size=30), st.integers(0, 2**32))
def test_every_id_has_a_row_in_its_table(table_rows: list[int], seed: int) -> None:
    ids = perf_data.popular_ids(table_rows, 50, np.random.default_rng(seed))
    assert ids.shape == (50, len(table_rows))
    assert ids.min() >= 0
    assert np.less(ids, table_rows).all()


def test_ids_are_asked_for_as_their_rank_says() -> None:
    ids = perf_data.popular_ids([1_000_000], 100_000, np.random.default_rng(0))[:, 0]
    # By the law each factor of ten has a sixth of all.
    tenfold = np.histogram(ids + 1, [1, 10, 100, 1_000, 10_000, 100_000, 1_000_001])[0]
    assert np.allclose(tenfold / len(ids), 1 / 6, atol=0.01)
    assert len(np.unique(ids)) > 10_000


def test_the_command_writes_rows_as_the_models_metadata_describes_them(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps(MANIFEST))
    written = tmp_path / "rows.json"
    assert perf_data.main([str(tmp_path), str(written), "--samples=20", "--seed=3"]) == 0
    document = json.loads(written.read_text())
    shape = ModelShape(2, ("x", "y"), (5, 100_000))
    assert document == perf_data.perf_document(shape, 20, np.random.default_rng(3))
    assert len(document["data"]) == 20
    for row in document["data"]:
        assert row["float_features"]["shape"] == row["id_list_features"]["shape"] == [2]
        assert all(len(tensor["content"]) == 2 for tensor in row.values())


@pytest.mark.parametrize("manifest", [None, "{}", "[]", '{"tables": 1}'])
def test_a_folder_that_holds_no_artifact_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], manifest: str | None
) -> None:
    if manifest is not None:
        (tmp_path / "manifest.json").write_text(manifest)
    assert perf_data.main([str(tmp_path), str(tmp_path / "rows.json")]) == 1
    assert str(tmp_path) in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps(MANIFEST))
    assert perf_data.main([str(tmp_path), str(tmp_path / "none" / "rows.json")]) == 1
    assert "none/rows.json" in capsys.readouterr().err
