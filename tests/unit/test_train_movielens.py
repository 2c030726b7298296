"""MovieLens read, its features made and its catalogue written, from a few ratings."""

import json
from pathlib import Path

import numpy as np
import pytest

from backends.dlrm.gather import DENSE
from backends.torch_dlrm.train.command import NO_DATA, main
from backends.torch_dlrm.train.errors import NoDataError
from backends.torch_dlrm.train.movielens import catalogue, download, features, files
from backends.torch_dlrm.train.rows import LENGTHS, VALUES, Rows
from scheduler.types import ModelSpec, TensorSpec
from tests.fixtures.movielens import RATINGS, write_wheel
from transports.codecs import predict_json


def bags_of(rows: Rows, name: str) -> list[list[int]]:
    """Return the ids of one feature, row by row."""
    flat = np.split(rows.values, np.cumsum(rows.lengths.ravel())[:-1])
    at = features.FEATURES.index(name) * len(rows)
    return [bag.tolist() for bag in flat[at : at + len(rows)]]


@pytest.fixture
def data(tmp_path: Path) -> files.MovieLens:
    return files.read(write_wheel(tmp_path / "wheel", RATINGS))


def test_ratings_come_in_the_order_of_time_and_four_stars_are_a_like(data: files.MovieLens) -> None:
    ratings = data.ratings
    assert ratings.time_s.tolist() == [100, 200, 200, 300, 400, 500]
    assert ratings.labels.tolist() == [1, 0, 1, 0, 1, 1]
    assert data.movies[1].genres == ("Animation", "Children's", "Comedy")
    assert (data.movies[4].year, data.movies[4].genres) == (0, ())


def test_a_row_knows_what_was_rated_before_and_nothing_of_its_own_second(
    data: files.MovieLens,
) -> None:
    rows, _ = features.build(data)
    assert bags_of(rows, "user") == [[1], [1], [1], [2], [2], [1]]
    assert bags_of(rows, "liked") == [[], [1], [1], [], [], [1, 3]]
    assert bags_of(rows, "disliked") == [[], [], [], [], [1], [2]]
    assert bags_of(rows, "movie") == [[1], [2], [3], [1], [2], [4]]
    counts = np.expm1(rows.dense[:, features.COLUMNS.index("user_log_ratings")])
    np.testing.assert_allclose(counts, [0, 1, 1, 0, 1, 3], atol=1e-5)
    counts = np.expm1(rows.dense[:, features.COLUMNS.index("movie_log_ratings")])
    np.testing.assert_allclose(counts, [0, 0, 0, 1, 1, 0], atol=1e-5)


def test_what_comes_later_changes_no_row(data: files.MovieLens, tmp_path: Path) -> None:
    rows, _ = features.build(data)
    changed = [(user, movie, 1 if at >= 300 else stars, at) for user, movie, stars, at in RATINGS]
    other, _ = features.build(files.read(write_wheel(tmp_path / "other", changed)))
    before, after = rows.part(0, 4).inputs, other.part(0, 4).inputs
    for name in (DENSE, LENGTHS, VALUES):
        np.testing.assert_array_equal(np.asarray(before[name]), np.asarray(after[name]))


def test_every_id_has_a_row_in_its_table(data: files.MovieLens) -> None:
    rows, known = features.build(data)
    for name, limit in zip(features.FEATURES, known.table_rows, strict=True):
        assert all(0 <= one < limit for bag in bags_of(rows, name) for one in bag)


def test_the_catalogue_s_fields_make_the_request_that_the_rows_say(data: files.MovieLens) -> None:
    _, known = features.build(data)
    made = catalogue.Catalogue(data, known)
    document = json.loads(json.dumps(made.document()))
    assert [user["id"] for user in document["users"]] == [1, 2, 3]
    assert document["users"][0]["rated"] == [1, 2, 3, 4]
    asked = predict_json.decode_request(made.request(2, [4, 3]).encode(), spec_of(known))
    wanted = made.rows(2, [4, 3])
    np.testing.assert_array_equal(np.asarray(asked.inputs[LENGTHS]), wanted.lengths)
    np.testing.assert_array_equal(np.asarray(asked.inputs[VALUES]), wanted.values)
    np.testing.assert_allclose(np.asarray(asked.inputs[DENSE], np.float64), wanted.dense, atol=1e-4)
    assert made.note(2, [4, 3]) == "user 2 (53, other) and the movies unknown; Four Rooms (1995)"


def spec_of(known: features.Known) -> ModelSpec:
    """Return the spec of a model of these features."""
    ids, wide = np.dtype(np.int64), len(features.FEATURES)
    inputs = (
        TensorSpec(DENSE, np.dtype(np.float32), ("rows", len(features.COLUMNS))),
        TensorSpec(LENGTHS, ids, (wide, "rows"), labels=features.FEATURES),
        TensorSpec(VALUES, ids, ("*",), lengths=LENGTHS),
    )
    return ModelSpec("movielens", "1", inputs, (), len(known.table_rows))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 but no archive"])
def test_a_file_that_is_not_the_wheel_is_refused_by_its_checksum(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / download.WHEEL).write_bytes(content)
    with pytest.raises(NoDataError, match="delete it to try again"):
        download.fetch(tmp_path)


@pytest.mark.parametrize("content", [b"no archive", None])
def test_a_wheel_without_the_data_is_an_error_that_names_it(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "wheel"
    if content is None:
        write_wheel(path, [])
    else:
        path.write_bytes(content)
    with pytest.raises(NoDataError, match="does not hold MovieLens-100K"):
        files.read(path)


def test_data_that_cannot_be_had_end_the_command_with_three(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"CONFIG_FILE": "/dev/null", "NO_INDEX": "1", "FIND_LINKS": ""}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    assert main(["movielens", str(tmp_path / "out"), "--cache", str(tmp_path / "c")]) == NO_DATA
    assert "narsil train: no data: pip could not download recbole==1.2.1" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_artifact_that_exists_is_not_trained_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["movielens", str(tmp_path)]) == 1
    assert "--force replaces an artifact" in capsys.readouterr().err
