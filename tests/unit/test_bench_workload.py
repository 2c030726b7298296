"""Requests are seeded, distinct and shaped as asked; every encoding says the same."""

from pathlib import Path

import numpy as np
import pytest

from backends.fake import FakeBackend
from loadtest import requests, workload
from loadtest.encodings import DENSE, LENGTHS, VALUES, Encoding, decode, encode
from loadtest.workload import Mix, Pooling
from transports.codecs import predict_json, predictor

SHAPE = workload.ModelShape(3, ("cat_0", "cat_1"), (1000, 10), "fake")
POOLED = Mix(((4, 1.0),), Pooling("geometric", 3.0), zipf=1.05)


def test_both_encodings_carry_the_same_requests() -> None:
    spec = FakeBackend(FakeBackend.Options()).spec
    for _, inputs in workload.draws(SHAPE, POOLED, 5, seed=7):
        text = encode("json", "fake", SHAPE.features, inputs)
        message = encode("protobuf", "fake", SHAPE.features, inputs)
        decoded = predict_json.decode_request(text, spec), predictor.decode_request(message, "")
        for name, array in decoded[0].inputs.items():
            np.testing.assert_array_equal(array, decoded[1].inputs[name])


def test_the_same_seed_gives_the_same_distinct_bodies() -> None:
    bodies = workload.make_bodies(SHAPE, 2, 50, 7, "protobuf")
    assert bodies == workload.make_bodies(SHAPE, 2, 50, 7, "protobuf")
    assert len(set(bodies)) == 50


@pytest.mark.parametrize("zipf", [0.0, 0.8, 1.0, 1.2])
def test_ids_are_below_their_tables_rows(zipf: float) -> None:
    drawn = workload.draw(SHAPE, 500, np.random.default_rng(1), Mix(zipf=zipf))
    ids = drawn[VALUES].reshape(2, 500)
    assert ids.min() >= 0
    assert ids[0].max() < 1000
    assert set(ids[1].tolist()) == set(range(10))


def test_popular_ids_follow_zipfs_exponent() -> None:
    drawn = workload.draw(SHAPE, 50_000, np.random.default_rng(1), Mix(zipf=1.0))
    first, tenth = np.sort(np.bincount(drawn[VALUES][:50_000]))[::-1][[0, 9]]
    assert first / tenth == pytest.approx(np.log(2) / np.log(11 / 10), rel=0.15)


@pytest.mark.parametrize("kind", ["geometric", "heavy"])
def test_bags_have_their_mean_and_at_least_one_id(kind: str) -> None:
    lengths = Pooling(kind, 5.0).lengths((4, 20_000), np.random.default_rng(2))
    assert lengths.min() >= 1
    assert lengths.max() <= 1000
    assert lengths.mean() == pytest.approx(5.0, rel=0.1)


def test_a_mix_of_rows_has_its_weights() -> None:
    mix = Mix(workload.parse_rows("1:3+20:1"))
    rows = [rows for rows, _ in workload.draws(SHAPE, mix, 1000, seed=0)]
    assert rows.count(1) == pytest.approx(750, abs=60)
    assert rows.count(20) == 1000 - rows.count(1)
    assert str(mix) == "1:3+20:1"


@pytest.mark.parametrize("text", ["0", "x", "1:0", "1:-1", ""])
def test_rows_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        workload.parse_rows(text)


@pytest.mark.parametrize("text", ["many", "geometric:0", "heavy:nan", "geometric:5000"])
def test_pooling_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        workload.parse_pooling(text)


def written(folder: Path, encoding: Encoding = "protobuf", most_bytes: int = 1 << 20) -> int:
    backend = FakeBackend(FakeBackend.Options())
    order = requests.Order(POOLED, encoding, "fake", 20, most_bytes, seed=1)
    return requests.write(folder, SHAPE, order, backend)


def test_bodies_come_back_from_the_file(tmp_path: Path) -> None:
    assert written(tmp_path) == 20
    bodies = requests.Bodies(tmp_path)
    made = workload.draws(SHAPE, POOLED, 20, seed=1)
    again = [encode("protobuf", "fake", SHAPE.features, inputs) for _, inputs in made]
    assert [bodies[number] for number in range(len(bodies))] == again


def test_requests_stay_within_their_memory_but_one_is_always_made(tmp_path: Path) -> None:
    assert written(tmp_path, most_bytes=1) == 1
    assert 1 < written(tmp_path, most_bytes=1000) < 20
    assert (tmp_path / "bodies.bin").stat().st_size <= 1000


def test_a_golden_score_tells_the_right_answer_from_a_neighbours(tmp_path: Path) -> None:
    written(tmp_path)
    golden = requests.Golden(tmp_path, "protobuf", 1e-5)
    scores = np.load(tmp_path / "scores.npy").reshape(20, 4)
    answers = [predictor_answer(row) for row in scores]
    assert golden.check(3, answers[3])
    assert not golden.check(3, answers[4])
    assert not golden.check(3, predictor_answer(scores[3][:3]))
    assert not golden.check(3, predictor_answer(scores[3] * np.float32(np.nan)))
    assert not golden.check(3, b"\xff")


def predictor_answer(scores: np.ndarray[tuple[int], np.dtype[np.float32]]) -> bytes:
    from transports.proto import predictor_pb2  # noqa: PLC0415

    answer = predictor_pb2.PredictionResponse()
    answer.predictions["default"].data.extend(scores.tolist())
    return answer.SerializeToString()


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b'{"predictions": 3}', b'{"predictions": {"a": ["x"]}}']
)
def test_what_is_no_json_answer_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        decode("json", body)


def test_a_request_has_torchrecs_tensors() -> None:
    inputs = workload.draw(SHAPE, 4, np.random.default_rng(0), POOLED)
    assert inputs[DENSE].shape == (4, 3)
    assert inputs[LENGTHS].shape == (2, 4)
    assert inputs[LENGTHS].sum() == len(inputs[VALUES])
