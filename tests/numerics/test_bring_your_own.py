"""Checkpoints that others trained, converted, served and compared with the eager model."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backends.bring.convert import main as convert
from backends.bring.inspect import main as inspect
from backends.torch_dlrm.export.command import main as export
from backends.torch_dlrm.export.golden import OUTPUT
from backends.torch_dlrm.export.quiet import quiet
from loadtest.lab.backends import Lent
from scheduler.types import Array, Batch, InferRequest
from tests.contract.every_wire import every_wire
from tests.fixtures.artifacts import load
from tests.fixtures.checkpoints import (
    FEATURES,
    FacebookDlrm,
    State,
    a_request,
    as_dcp,
    as_file,
    as_safetensors,
    as_wrapped,
    facebook_scores,
    seeded,
    torchrec_model,
    torchrec_scores,
)
from tests.fixtures.native import load_native
from tests.fixtures.requests import VALUES
from tests.fixtures.serving import serving

NAMED = ("--features", ",".join(FEATURES))
TABLES = "sparse_arch.embedding_bag_collection.embedding_bags"


@pytest.fixture(scope="module")
def torchrec() -> torch.nn.Module:
    return torchrec_model()


@pytest.fixture(scope="module")
def facebook() -> FacebookDlrm:
    model = FacebookDlrm()
    seeded(model, 4)
    return model


def scores_of(backend: Any, request: InferRequest) -> Array:
    assert backend.check(request) is None
    found: Array = backend.prepare(Batch((request,)))()[OUTPUT]
    return found


def served(folder: Path, cache: Path) -> Array:
    return scores_of(load_native(folder, cache, lanes=1, max_batch_rows=16), a_request())


def assert_close(found: Array, expected: Array, tolerance: float) -> None:
    difference = np.abs(np.asarray(found, np.float64) - np.asarray(expected, np.float64))
    assert difference.max() <= tolerance


@pytest.mark.parametrize("save", [as_file, as_wrapped, as_safetensors, as_dcp])
def test_torchrecs_weights_score_as_torchrec_does(
    torchrec: torch.nn.Module,
    kernel_cache: Path,
    tmp_path: Path,
    save: Callable[[State, Path], Path],
) -> None:
    path = save(dict(torchrec.state_dict()), tmp_path)
    assert convert([str(path), str(tmp_path / "out"), *NAMED]) == 0
    expected = torchrec_scores(torchrec, a_request())
    assert expected.std() > 0.05
    assert_close(served(tmp_path / "out", kernel_cache), expected, 1e-6)


def test_facebooks_weights_score_as_a_plain_forward_does(
    facebook: FacebookDlrm, kernel_cache: Path, tmp_path: Path
) -> None:
    torch.save({"epoch": 1, "state_dict": facebook.state_dict()}, tmp_path / "dlrm.pt")
    assert convert([str(tmp_path / "dlrm.pt"), str(tmp_path / "out")]) == 0
    expected = facebook_scores(facebook, a_request())
    assert expected.std() > 0.05
    assert_close(served(tmp_path / "out", kernel_cache), expected, 1e-6)


def averaging(facebook: FacebookDlrm) -> FacebookDlrm:
    """Return the same weights, the bags of the last table averaged."""
    model = FacebookDlrm()
    model.load_state_dict(facebook.state_dict())
    model.averaged = {2}
    return model


def test_bags_are_averaged_where_it_is_said(
    facebook: FacebookDlrm, kernel_cache: Path, tmp_path: Path
) -> None:
    path = as_file(dict(facebook.state_dict()), tmp_path)
    expected = facebook_scores(averaging(facebook), a_request())
    assert not np.allclose(facebook_scores(facebook, a_request()), expected, atol=0.01)
    assert convert([str(path), str(tmp_path / "out"), *NAMED, "--mean", FEATURES[2]]) == 0
    assert_close(served(tmp_path / "out", kernel_cache), expected, 1e-6)


def test_a_feature_to_average_that_is_not_there_is_named(
    facebook: FacebookDlrm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = as_file(dict(facebook.state_dict()), tmp_path)
    out = str(tmp_path / "out")
    wrong = (*NAMED, "--mean", "brnd")
    assert convert([str(path), out, *wrong]) == 1
    assert export([out, "--from", str(path), *wrong]) == 1
    said = capsys.readouterr().err
    assert said.count("--mean brnd: no such feature; there are size, brand, colour") == 2
    assert not (tmp_path / "out").exists()


async def test_a_converted_checkpoint_is_served_over_every_wire(
    facebook: FacebookDlrm, kernel_cache: Path, tmp_path: Path, certificates: Path
) -> None:
    path = as_file(dict(facebook.state_dict()), tmp_path)
    assert convert([str(path), str(tmp_path / "out"), *NAMED, "--name", "mine"]) == 0
    backend = load_native(tmp_path / "out", kernel_cache, lanes=1, max_batch_rows=16)
    assert (backend.spec.name, backend.spec.input("id_list_features.lengths").labels) == (  # type: ignore[union-attr]  # it has
        "mine",
        FEATURES,
    )
    expected = facebook_scores(facebook, a_request())
    async with (
        serving(Lent(backend), certificates) as running,
        every_wire(running) as wires,
    ):
        for wire in wires.values():
            outcome = await wire.ask(a_request())
            found = np.frombuffer(outcome.scores, np.float32)
            assert_close(found, expected, 1e-6)


def test_a_served_model_given_as_weights_is_told_from_them(
    small_artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = small_artifact / "model.pt"
    assert export([str(tmp_path / "out"), "--from", str(model), *NAMED]) == 1
    said = capsys.readouterr().err
    assert f"{model}: it is a TorchScript model, not weights to make one of: narsil serve" in said
    assert "weights_only" not in said


@pytest.mark.slow
@pytest.mark.parametrize("naming", ["torchrec", "facebook"])
def test_an_exported_checkpoint_scores_within_int8(
    torchrec: torch.nn.Module, facebook: FacebookDlrm, tmp_path: Path, naming: str
) -> None:
    model = torchrec if naming == "torchrec" else facebook
    path = as_file(dict(model.state_dict()), tmp_path)
    assert export([str(tmp_path / "out"), "--from", str(path), *NAMED]) == 0
    backend = load(tmp_path / "out", lanes=1, max_batch_rows=16)
    if naming == "torchrec":
        expected = torchrec_scores(torchrec, a_request())
    else:
        expected = facebook_scores(facebook, a_request())
    assert_close(scores_of(backend, a_request()), expected, 0.02)


@pytest.mark.slow
def test_an_exported_checkpoint_averages_bags_where_it_is_said(
    facebook: FacebookDlrm, tmp_path: Path
) -> None:
    path = as_file(dict(facebook.state_dict()), tmp_path)
    assert export([str(tmp_path / "out"), "--from", str(path), *NAMED, "--mean", FEATURES[2]]) == 0
    backend = load(tmp_path / "out", lanes=1, max_batch_rows=16)
    expected = facebook_scores(averaging(facebook), a_request())
    assert_close(scores_of(backend, a_request()), expected, 0.02)


def test_the_order_of_tables_is_asked_for_where_a_file_has_none(
    torchrec: torch.nn.Module, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for save in (as_safetensors, as_dcp):
        path = save(dict(torchrec.state_dict()), tmp_path)
        assert convert([str(path), str(tmp_path / "out")]) == 1
        assert "does not keep the order of its tables" in capsys.readouterr().err
        wrong = ("--features", "size,brand,color")
        assert convert([str(path), str(tmp_path / "out"), *wrong]) == 1
        assert "3 tables': missing colour; no table color" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def change(state: State, **changed: Any) -> State:
    return {**state, **{name.replace("__", "."): tensor for name, tensor in changed.items()}}


REFUSED = [
    ({"top_l__0__weight": torch.ones(8, 14)},
     "arch-interaction-itself) would, and is not served"),
    ({"top_l__0__weight": torch.ones(8, 16)},
     "a concatenation (arch-interaction-op=cat) would, and is not served"),
    ({"emb_l__4__weight": torch.ones(3, 4)}, "emb_l has 4 tables, but not numbered 0..3"),
    ({"v_W_l__0": torch.ones(3)}, "has unexpected v_W_l.0"),
    ({"bot_l__0__bias": torch.ones(2)}, "a dense layer has 2 biases for 6 outputs"),
    ({"top_l__2__weight": torch.full((1, 8), torch.nan)}, "has values that are not finite"),
    ({"emb_l__0__weight": torch.ones(7, 4).half()}, "emb_l.0.weight is float16; give the FP32"),
    ({"emb_l__0__weight": torch.ones(7, 4).bfloat16()}, "emb_l.0.weight is torch.bfloat16"),
]  # fmt: skip


def test_weights_that_are_another_model_are_named(
    facebook: FacebookDlrm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for changed, words in REFUSED:
        path = as_file(change(dict(facebook.state_dict()), **changed), tmp_path)
        assert convert([str(path), str(tmp_path / "out")]) == 1
        assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_page_runs_as_it_stands(
    facebook: FacebookDlrm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel_cache: Path
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "bring-your-own.md").read_text()
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": facebook.state_dict()}, "dlrm.pt")
    names: dict[str, Any] = {}
    ran = []
    for kind, block in re.findall(
        r"^```(python|console)\n(.*?)^```", page, re.MULTILINE | re.DOTALL
    ):
        if kind == "python":
            with quiet():
                exec(block, names)
        for line in block.splitlines() if kind == "console" else ():
            _, _, command, *arguments = shlex.split(line)
            if Path(arguments[0]).exists() and command in {"inspect", "convert"}:
                assert {"inspect": inspect, "convert": convert}[command](arguments) == 0
                ran.append(arguments[-1] if command == "inspect" else arguments[1])
    assert ran == [
        "torchrec.pt", "models/torchrec", "checkpoint", "models/dcp", "dlrm.pt", "models/facebook",
    ]  # fmt: skip
    for folder in ("models/torchrec", "models/dcp"):
        backend = load_native(Path(folder), kernel_cache, lanes=1, max_batch_rows=16)
        request = a_request()
        lengths = backend.spec.input("id_list_features.lengths")
        assert lengths is not None
        assert lengths.labels == ("user", "item", "shop")
        ids = {**request.inputs, VALUES: request.inputs[VALUES] % 7}
        scores_of(backend, InferRequest("", request.rows, ids))
