"""Servers from PyPI beside Narsil: what they run, how they are told apart, what the table says."""

import asyncio
from pathlib import Path

import numpy as np
import orjson
import pytest

from backends.fake import FakeBackend
from loadtest import bare, workload
from loadtest.encodings import Encoding, decode, encode
from loadtest.lab import curve
from loadtest.peers import __main__ as peers
from loadtest.peers.catalogue import PEERS, Peer, PeerError, serving
from loadtest.peers.model import Model, as_bytes, as_json
from loadtest.peers.wording import LISTED, OPEN_INFERENCE, PLAIN, Reworded
from loadtest.requests import Bodies, Golden, Order, write
from loadtest.wires.base import Target
from loadtest.workload import Mix, Pooling
from scheduler.types import Batch, InferRequest
from tests.fixtures.serving import serving as narsil_serving

SHAPE = workload.ModelShape(3, ("cat_0", "cat_1"), (1000, 1000), "fake")


def test_every_peer_has_a_server_and_what_it_needs_pinned() -> None:
    folder = Path(peers.__file__).parent
    for name in PEERS:
        assert (folder / name / "server.py").read_text().count("\n") < 60
        assert "==" in (folder / name / "requirements.txt").read_text()


def test_a_peer_that_is_not_installed_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(PeerError, match="make peer PEER=nobody"),
        serving(Peer("nobody", "/", "json"), tmp_path, b""),
    ):
        pass


def test_a_table_line_has_the_median_of_the_rounds_ratios() -> None:
    line = peers._line(PEERS["mosec"], "p50 ms", 1, [(4.0, 2.0), (4.0, 1.0), (10.0, 3.0)])
    assert (line["ours by theirs"], line["spread"]) == ("0.30", "0.25 - 0.50")
    assert (line["theirs"], line["ours"]) == (4.0, 2.0)


async def test_a_peer_that_answers_wrongly_is_not_measured(
    certificates: Path, tmp_path: Path
) -> None:
    backend = FakeBackend(FakeBackend.Options())
    write(tmp_path, SHAPE, Order(Mix(((2, 1.0),)), "protobuf", "", 5, 1 << 20, 1), backend)
    bodies, golden = Bodies(tmp_path), Golden(tmp_path, "protobuf", 1e-5)
    async with narsil_serving(backend, certificates) as served:
        side = peers.Side(_target(served.urls["http"]), bodies, PLAIN.told)
        await asyncio.to_thread(peers.verify, PEERS["mosec"], side, golden)
        (tmp_path / "scores.npy").unlink()
        np.save(tmp_path / "scores.npy", np.zeros((1, 10), np.float32))
        wrong = Golden(tmp_path, "protobuf", 1e-5)
        with pytest.raises(PeerError, match="5 of 5 answers wrong"):
            await asyncio.to_thread(peers.verify, PEERS["mosec"], side, wrong)


def _target(url: str) -> Target:
    host, _, port = url.removeprefix("http://").partition(":")
    return Target(host, int(port), "/v1/predict", {"content-type": "application/x-protobuf"})


def test_requests_of_several_clients_in_one_forward_get_their_own_scores(
    small_artifact: Path,
) -> None:
    shape = workload.read_shape(small_artifact)
    mix = Mix(((1, 1.0), (5, 1.0)), Pooling("geometric", 3.0))
    made = [*workload.draws(shape, mix, 4, seed=3)]
    model, backend = Model(str(small_artifact)), bare.load(small_artifact, "torch_dlrm")
    features = shape.features
    sent = [model.from_bytes(encode("protobuf", "", features, one)) for _, one in made[:2]]
    texts = [orjson.loads(encode("json", "", features, one)) for _, one in made[2:]]
    scores = model.predict([*sent, *map(model.from_json, texts)])
    for (rows, inputs), got in zip(made, scores, strict=True):
        expected = backend.prepare(Batch((InferRequest("", rows, inputs),)))()["default"]
        assert got == pytest.approx(np.asarray(expected, np.float32).reshape(rows), abs=1e-5)
        answers: dict[Encoding, bytes] = {
            "protobuf": as_bytes(got), "json": orjson.dumps(as_json(got)),
        }  # fmt: skip
        for encoding, body in answers.items():
            assert decode(encoding, body)["default"] == pytest.approx(got)


def test_requests_in_a_peers_words_keep_every_id_and_their_answers_read_as_ours(
    tmp_path: Path,
) -> None:
    mix = Mix(((2, 1.0),), Pooling("geometric", 3.0))
    write(tmp_path, SHAPE, Order(mix, "json", "", 3, 1 << 20, 1), None)
    ours, listed = Bodies(tmp_path), Reworded(tmp_path, LISTED)
    joined = Reworded(tmp_path, OPEN_INFERENCE)
    for number in range(len(ours)):
        document = orjson.loads(ours[number])
        assert orjson.loads(listed[number]) == {"requests": [document]}
        inputs = {one["name"]: one for one in orjson.loads(joined[number])["inputs"]}
        rows = zip(*document["id_list_features"].values(), strict=True)
        bags = [bag for row in rows for bag in row]
        assert inputs["values"]["data"] == [one for bag in bags for one in bag]
        assert inputs["lengths"]["data"] == [len(bag) for bag in bags]
        assert inputs["float_features"]["shape"] == [*inputs["lengths"]["shape"][:1], 3]
    answer = {"predictions": {"default": [0.5, 0.25]}}
    assert orjson.loads(LISTED.told(orjson.dumps([answer]))) == answer
    outputs = {"outputs": [{"name": "default", "data": [0.5, 0.25]}]}
    assert orjson.loads(OPEN_INFERENCE.told(orjson.dumps(outputs))) == answer


def test_a_saved_result_is_drawn_from_its_figures_alone(tmp_path: Path) -> None:
    run = {"wire": "grpc", "rows": 1, "requests": 3, "samples_per_s": 5e3, "p50_ms": 1.0,
           "p99_ms": 2.0, "response_histogram": "large"}  # fmt: skip
    result, small, svg = (tmp_path / name for name in ("a.json", "b.json", "a.svg"))
    result.write_bytes(orjson.dumps({"manifest": {}, "runs": [run]}))
    assert curve.main([str(svg), str(result), "--keep", str(small)]) == 0
    assert "response_histogram" not in small.read_text()
    again = tmp_path / "again.svg"
    assert curve.main([str(again), str(small)]) == 0
    assert again.read_text() == svg.read_text()
    assert "p99 by throughput" in svg.read_text()
