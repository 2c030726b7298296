"""Ids that no table has a row for, each policy over every wire, behind every backend."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

from backends.fake import FakeBackend, FakeOptions
from scheduler.backend import Backend
from scheduler.errors import Code, Missed
from scheduler.types import Batch, InferRequest, ModelSpec
from tests.contract.every_wire import Asker, every_wire
from tests.fixtures.artifacts import load
from tests.fixtures.behind_front_ends import MakeFrontEnds
from tests.fixtures.ids import POLICIES, bags_of, mapped, with_bags
from tests.fixtures.native import load_native
from tests.fixtures.onnx import load_onnx
from tests.fixtures.ranking import random_ranked
from tests.fixtures.ranking_wires import ranking_wires
from tests.fixtures.requests import features, random_request
from tests.fixtures.serving import Served, serving

OPTION = tuple(f"cat_{number}={policy}" for number, policy in enumerate(POLICIES))
REJECTS, ZERO = POLICIES.index("reject"), POLICIES.index("zero")
# Wider than any table, and than float64 and int32 would keep.
WILD = (-(2**63), -1, 2**31 + 7, 2**53 + 1, 2**63 - 1)
Wires: TypeAlias = dict[str, Asker]


@pytest.fixture
async def served(certificates: Path, front_ends: MakeFrontEnds) -> AsyncIterator[Served]:
    backend = FakeBackend(FakeOptions(sparse_features=5, ids=OPTION))
    async with serving(backend, certificates, front_ends=front_ends()) as running:
        yield running


@pytest.fixture(params=["torch_dlrm", "native_dlrm", "onnx_dlrm"])
def real(request: pytest.FixtureRequest, small_artifact: Path) -> Backend:
    """The small model with the policies, in each backend."""
    if request.param == "torch_dlrm":
        return load(small_artifact, ids=OPTION)
    if request.param == "native_dlrm":
        return load_native(small_artifact, request.getfixturevalue("kernel_cache"), ids=OPTION)
    return load_onnx(request.getfixturevalue("onnx_folder"), ids=OPTION)


def with_wild_ids(request: InferRequest, at: int) -> InferRequest:
    """Return ``request`` with ids without a row in the bags of feature ``at``."""
    bags = bags_of(request)
    bags[at][0] = [0, *WILD, 1]
    return with_bags(request, bags)


def rows_of(request: InferRequest, spec: ModelSpec) -> tuple[InferRequest, list[Missed]]:
    """Return what ``request`` looks up, and how many of its ids are counted."""
    names, rows = features(spec), list(map(int, spec.properties.get("table_rows", "").split()))
    policies = [*POLICIES, *["reject"] * (len(names) - len(POLICIES))]
    bags, counts = mapped(bags_of(request), policies, rows or [1000] * len(names))
    found = [Missed(names[feature], name, count) for (feature, name), count in counts.items()]
    return with_bags(request, bags), found


async def check_every_policy(served: Served, backend: Backend, wires: Wires) -> None:
    spec = served.engine.spec("")
    for at, policy in enumerate(POLICIES):
        request = with_wild_ids(random_request(spec, 3, seed=at, table_rows=16), at)
        expected, missed = rows_of(request, spec)
        served.recorder.ids.clear()
        outcomes = {name: await wire.ask(request) for name, wire in wires.items()}
        assert len({(each.scores, each.detail) for each in outcomes.values()}) == 1, outcomes
        outcome = next(iter(outcomes.values()))
        if policy == "reject":
            assert all(Code.INVALID_REQUEST in each.codes for each in outcomes.values())
            assert f"feature 'cat_0' row 0 has id {WILD[0]}; the table has" in outcome.detail
        else:
            alone = np.asarray(
                next(iter(backend.prepare(Batch((expected,)))().values())), np.float32
            )
            scores = np.frombuffer(outcome.scores, np.float32)
            assert np.abs(scores - alone).max() <= 1e-6
        assert served.recorder.ids == {one._replace(ids=0): one.ids * len(wires) for one in missed}


async def test_every_policy_holds_on_every_wire_and_counts(served: Served) -> None:
    async with every_wire(served) as wires:
        await check_every_policy(served, served.backend, wires)


@pytest.mark.slow
async def test_every_backend_has_every_policy_on_every_wire(
    real: Backend, certificates: Path, front_ends: MakeFrontEnds
) -> None:
    far = front_ends()
    async with serving(real, certificates, front_ends=far) as served, every_wire(served) as wires:
        await check_every_policy(served, real, wires)
    real.close()


async def test_a_context_with_wild_ids_scores_as_the_request_spelled_out(served: Served) -> None:
    spec = served.engine.spec("")
    names = features(spec)
    ranked = random_ranked(spec, 3, seed=1, columns=[0], shared=[names[ZERO], names[4]])
    wild = replace(ranked, context_bags={names[ZERO]: [3, *WILD], names[4]: [*WILD, 5]})
    async with ranking_wires(served) as wires:
        outcomes = {**await wires.ranked(wild), **await wires.spelled_out(wild)}
    assert len(set(outcomes.values())) == 1, outcomes
    assert {len(outcome.scores) for outcome in outcomes.values()} == {4 * 3}


async def test_unsigned_ids_are_the_signed_of_the_same_bits(served: Served) -> None:
    spec = served.engine.spec("")
    request = with_wild_ids(random_request(spec, 1, seed=1, table_rows=16), 4)
    inputs = request.inputs
    name = "id_list_features.values"
    unsigned = replace(request, inputs={**inputs, name: inputs[name].view(np.uint64)})
    async with every_wire(served) as wires:
        expected = await wires["gRPC OIP"].ask(request)
        assert expected.scores
        for wire in ("gRPC OIP", "HTTP/1.1 JSON", "HTTP/1.1 OIP JSON", "HTTP/1.1 OIP binary"):
            assert await wires[wire].ask(unsigned) == expected, wire
