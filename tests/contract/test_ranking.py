"""A context and its candidates score as the request spelled out, over every wire, bit for bit."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from backends.fake import FakeBackend
from tests.fixtures.behind_front_ends import MakeFrontEnds
from tests.fixtures.ranking import Ranked, random_ranked
from tests.fixtures.ranking_wires import RankingWires, ranking_wires
from tests.fixtures.requests import DENSE, LENGTHS, dense_width, features
from tests.fixtures.serving import Served, serving
from transports.codecs.spelled_out import MAX_EXPANDED_BYTES

# As its fixtures do: servers are shared.
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def wires(served: Served) -> AsyncIterator[RankingWires]:
    async with ranking_wires(served) as connected:
        yield connected


def asked(served: Served, rows: int, seed: int) -> Ranked:
    """Return candidates that share every other column and feature."""
    spec = served.engine.spec("")
    columns, shared = range(0, dense_width(spec), 2), features(spec)[::2]
    return random_ranked(spec, rows, seed, columns, shared)


async def test_every_form_on_every_wire_scores_as_the_request_spelled_out(
    served: Served, wires: RankingWires
) -> None:
    for rows in (0, 1, 7):
        ranked = asked(served, rows, seed=rows)
        outcomes = {**await wires.ranked(ranked), **await wires.spelled_out(ranked)}
        assert len(set(outcomes.values())) == 1, outcomes
        assert {len(outcome.scores) for outcome in outcomes.values()} == {4 * rows}


async def test_what_candidates_share_reaches_the_backend_over_every_wire(
    fake_backend: FakeBackend, certificates: Path, front_ends: MakeFrontEnds
) -> None:
    far = front_ends()
    running = serving(fake_backend, certificates, front_ends=far)
    async with running as served, ranking_wires(served) as wires:
        ranked, before = asked(served, rows=2, seed=8), len(fake_backend.batches)
        outcomes = await wires.ranked(ranked)
        batches = list(fake_backend.batches)[before:]
    found = [request.shared for batch in batches for request in batch.requests]
    assert found == [{DENSE: (0, 2), LENGTHS: (0,)}] * len(outcomes)


async def test_candidates_may_be_more_than_a_batch(served: Served, wires: RankingWires) -> None:
    ranked = asked(served, served.engine.spec("").max_batch_rows + 5, seed=3)
    # Asked one after the other, so that the batches are the same ones.
    outcomes = {**await wires.ranked(ranked), **await wires.spelled_out(ranked)}
    assert len(set(outcomes.values())) == 1, outcomes
    assert {len(outcome.scores) for outcome in outcomes.values()} == {4 * ranked.rows}


async def test_a_wrong_id_of_the_context_is_refused_in_the_same_words(
    served: Served, wires: RankingWires
) -> None:
    ranked = asked(served, rows=3, seed=1)
    feature = ranked.shared[0]
    wrong = replace(ranked, context_bags={**ranked.context_bags, feature: [3, 1000]})
    outcomes = {**await wires.ranked(wrong), **await wires.spelled_out(wrong)}
    assert len(set(outcomes.values())) == 1, outcomes
    (outcome,) = set(outcomes.values())
    assert outcome.status == 400
    assert f"feature {feature!r} row 0 has id 1000" in outcome.detail


async def test_a_feature_that_both_have_is_refused_in_the_same_words(
    served: Served, wires: RankingWires
) -> None:
    ranked = asked(served, rows=2, seed=2)
    feature = ranked.shared[0]
    twice = replace(ranked, bags={feature: [[1]] * 2, **ranked.bags})
    given = await wires.ranked(twice)
    outcomes = {outcome for name, outcome in given.items() if not name.endswith("torchrec")}
    (outcome,) = outcomes
    assert outcome.status == 400
    assert outcome.detail == (
        f"feature {feature!r}: given in the context and with the candidates, too"
    )


async def test_too_many_candidates_are_refused_in_the_same_words(
    served: Served, wires: RankingWires
) -> None:
    ranked = asked(served, served.engine.spec("").max_request_rows + 1, seed=4)
    outcomes = await wires.ranked(ranked)
    assert len(set(outcomes.values())) == 1, outcomes
    (outcome,) = set(outcomes.values())
    assert outcome.status == 400
    assert "max_request_rows" in outcome.detail


async def test_a_context_that_would_outgrow_the_limit_is_refused_in_the_same_words(
    served: Served, wires: RankingWires
) -> None:
    ranked = asked(served, served.engine.spec("").max_request_rows, seed=5)
    long = [1] * (MAX_EXPANDED_BYTES // (8 * ranked.rows))
    large = replace(ranked, context_bags={**ranked.context_bags, ranked.shared[0]: long})
    outcomes = await wires.ranked(large)
    # gRPC has one status for what HTTP has two for.
    assert {outcome.status for outcome in outcomes.values()} <= {413, 429}
    (detail,) = {outcome.detail for outcome in outcomes.values()}
    assert f"above the limit of {MAX_EXPANDED_BYTES} bytes" in detail
