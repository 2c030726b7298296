"""Scores after an update are those of a model that has the new rows from the start."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from backends.bring.convert import main as convert
from backends.dlrm.live import LiveTables
from backends.dlrm.manifest import MODEL_FILE
from backends.torch_dlrm.backend import TorchDlrmBackend
from backends.torch_dlrm.export.golden import (
    LENGTHS,
    OUTPUT,
    VALUES,
    Golden,
    golden_inputs,
    read_golden,
)
from backends.torch_dlrm.export.presets import PRESETS
from backends.torch_dlrm.export.quiet import quiet
from scheduler.backend import TableRows, TableSpec
from scheduler.errors import Code, ServingError
from scheduler.types import Batch, InferRequest
from tests.fixtures.artifacts import load
from tests.fixtures.native import load_native, need_kernel
from tests.fixtures.updated import Updated, random_rows, with_rows

KINDS = (
    "fused", "lean", "mapped", "artifact", "compiled",
    pytest.param("numba", marks=pytest.mark.slow),
)  # fmt: skip
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def loaded(small_artifact: Path, kernel_cache: Path) -> Callable[[str], Updated]:
    """Backends of every kind, each loaded once; tests roll back what they did."""
    made: dict[str, Updated] = {}

    def get(kind: str) -> Updated:
        if kind not in made:
            made[kind] = make(kind, small_artifact, kernel_cache)
        return made[kind]

    return get


def make(kind: str, artifact: Path, cache: Path) -> Updated:
    if kind in ("compiled", "numba"):
        return load_native(artifact, cache, lanes=2, kernel=kind)
    need_kernel(cache, kind)
    tables = "map" if kind == "mapped" else "copy"
    plan = "lean" if kind == "mapped" else kind
    return load(artifact, lanes=2, plan=plan, tables=tables, cache_dir=str(cache))


@pytest.fixture(params=KINDS)
def backend(request: pytest.FixtureRequest, loaded: Callable[[str], Updated]) -> Iterator[Updated]:
    chosen = loaded(request.param)
    yield chosen
    chosen.roll_back()


@pytest.fixture(scope="module")
def converted(small_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("converted") / "model"
    assert convert([str(small_artifact), str(folder)]) == 0
    return folder


def score(backend: Updated, request: InferRequest) -> npt.NDArray[np.float64]:
    """Return the scores, each as the nearest float64: itself."""
    return backend.prepare(Batch((request,)))()[OUTPUT].astype(np.float64)


def every_row(table: TableRows, golden: Golden) -> InferRequest:
    """One request whose bags of the first table hold each of its rows."""
    rows, features = len(table.rows), len(golden.inputs[LENGTHS])
    lengths = np.zeros((features, rows), np.int64)
    lengths[0] = 1
    dense = np.resize(
        golden.inputs["float_features"], (rows, golden.inputs["float_features"].shape[1])
    )
    return InferRequest("", rows, {"float_features": dense, LENGTHS: lengths, VALUES: table.rows})


def test_scores_are_those_of_a_model_exported_with_the_rows(
    backend: Updated, golden: Golden, converted: Path, kernel_cache: Path, tmp_path: Path
) -> None:
    before = score(backend, golden.request())
    deltas = [random_rows(seed, backend.update_tables(), 1000) for seed in (1, 2)]
    for one in deltas:
        backend.prepare_update(one)()
    after = score(backend, golden.request())
    rows = with_rows(converted, tmp_path / "exported", [table for one in deltas for table in one])
    expected = score(load_native(rows, kernel_cache, lanes=1, verify=False), golden.request())
    assert np.abs(after - before).max() > 0.05
    assert np.abs(after - expected).max() <= TOLERANCE
    if backend.spec.properties["plan"] in {"compiled", "fused"}:
        assert np.array_equal(after, expected)


@given(seeds=st.lists(st.integers(0, 2**32), min_size=1, max_size=4))
@settings(max_examples=8)
@pytest.mark.parametrize("kind", ["mapped", "compiled"])
def test_a_rollback_restores_every_bit(
    loaded: Callable[[str], Updated], golden: Golden, kind: str, seeds: list[int]
) -> None:
    backend = loaded(kind)
    before = score(backend, golden.request())
    touched: set[tuple[str, int]] = set()
    for seed in seeds:
        rows = random_rows(seed, backend.update_tables())
        backend.prepare_update(rows)()
        touched |= {(one.table, row) for one in rows for row in one.rows.tolist()}
    assert backend.roll_back() == len(touched)
    assert np.array_equal(score(backend, golden.request()), before)
    assert backend.roll_back() == 0


def test_a_batch_sees_all_rows_of_a_table_or_none(backend: Updated, golden: Golden) -> None:
    spec = backend.update_tables()[0]
    rows = np.arange(128, dtype=np.int64)
    sides = [
        TableRows(spec.name, rows, np.full((128, spec.dim), value, np.float32))
        for value in (-0.4, 0.4)
    ]
    request = every_row(sides[0], golden)
    expected = []
    for side in sides:
        backend.prepare_update([side])()
        expected.append(score(backend, request).tobytes())
    assert expected[0] != expected[1]
    over = threading.Event()
    seen: set[bytes] = set()

    def ask() -> None:
        while not over.is_set():
            seen.add(score(backend, request).tobytes())

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for thread in asking:
        thread.start()
    for number in range(200):
        backend.prepare_update([sides[number % 2]])()
    over.set()
    for thread in asking:
        thread.join()
    assert seen <= set(expected)


def test_a_rollback_under_load_is_seen_whole_or_not_at_all(
    backend: Updated, golden: Golden
) -> None:
    spec = backend.update_tables()[0]
    rows = np.arange(128, dtype=np.int64)
    side = TableRows(spec.name, rows, np.full((128, spec.dim), 0.4, np.float32))
    request = every_row(side, golden)
    loaded = score(backend, request).tobytes()
    backend.prepare_update([side])()
    updated = score(backend, request).tobytes()
    over = threading.Event()
    seen: set[bytes] = set()

    def ask() -> None:
        while not over.is_set():
            seen.add(score(backend, request).tobytes())

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for thread in asking:
        thread.start()
    for _ in range(50):
        assert backend.roll_back() == 128
        backend.prepare_update([side])()
    over.set()
    for thread in asking:
        thread.join()
    assert loaded != updated
    assert seen <= {loaded, updated}


def test_values_that_cannot_be_stored_change_nothing(backend: Updated, golden: Golden) -> None:
    before = score(backend, golden.request())
    first, second = backend.update_tables()[:2]
    good = TableRows(first.name, np.arange(9), np.ones((9, first.dim), np.float32))
    bad = TableRows(second.name, np.arange(9), np.full((9, second.dim), 1e9, np.float32))
    with pytest.raises(ServingError, match=f"table '{second.name}': row 0 .* FP16") as caught:
        backend.prepare_update([good, bad])
    assert caught.value.code is Code.INVALID_REQUEST
    assert np.array_equal(score(backend, golden.request()), before)
    assert backend.roll_back() == 0


@pytest.mark.parametrize("kind", ["mapped", "compiled"])
def test_the_file_and_whoever_else_maps_it_see_nothing(
    small_artifact: Path, kernel_cache: Path, golden: Golden, kind: str
) -> None:
    file = small_artifact / MODEL_FILE
    whole = hashlib.sha256(file.read_bytes()).digest()
    one, other = (make(kind, small_artifact, kernel_cache) for _ in range(2))
    before = score(other, golden.request())
    spec = one.update_tables()[0]
    one.prepare_update(
        [TableRows(spec.name, np.arange(spec.rows), np.ones((spec.rows, spec.dim), np.float32))]
    )()
    assert not np.array_equal(score(one, golden.request()), before)
    assert np.array_equal(score(other, golden.request()), before)
    assert hashlib.sha256(file.read_bytes()).digest() == whole


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["lean", "artifact"])
def test_an_updated_model_is_bit_for_bit_the_one_that_the_exporter_makes_of_the_rows(
    tmp_path: Path, plan: str
) -> None:
    rows = export_pair(tmp_path)
    updated, exported = (load(tmp_path / name, lanes=1, plan=plan) for name in ("old", "new"))
    updated.prepare_update(rows)()
    golden = read_golden(tmp_path / "new")
    assert np.array_equal(score(updated, golden.request()), score(exported, golden.request()))
    for ours, theirs in zip(stored(updated), stored(exported), strict=True):
        assert np.array_equal(ours, theirs)


def export_pair(folder: Path) -> list[TableRows]:
    """Export a model as ``old``, and one with the rows that are returned as ``new``."""
    with quiet():
        from backends.torch_dlrm.export.model import build, seed_weights  # noqa: PLC0415
        from backends.torch_dlrm.export.write import Order, export  # noqa: PLC0415
    shape = PRESETS["small"]
    dlrm = build(shape)
    seed_weights(dlrm, 3, shape, golden_inputs(shape, 64, 3))
    state = {name: tensor.detach().clone() for name, tensor in dlrm.state_dict().items()}
    specs = [
        TableSpec(feature, rows, shape.dim, "int8")
        for feature, rows in zip(shape.features, shape.table_rows, strict=True)
    ]
    changed = random_rows(5, specs, 1000)
    for name in ("old", "new"):
        if name == "new":
            for one in changed:
                key = f"sparse_arch.embedding_bag_collection.embedding_bags.t_{one.table}.weight"
                state[key][torch.from_numpy(one.rows)] = torch.from_numpy(one.values)
        file = folder / f"{name}.safetensors"
        save_file(state, file)
        with quiet():
            export(Order(folder / name, shape, name, state_file=file), lambda text: None)
    return changed


def stored(backend: TorchDlrmBackend) -> list[npt.NDArray[np.uint8]]:
    tables = backend._model.tables
    assert isinstance(tables, LiveTables)
    return [table.data for table in tables._tables.values()]
