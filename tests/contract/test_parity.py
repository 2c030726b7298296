"""Same request, same scores bit for bit; same fault, same code and same words: over every wire.

``pytest tests/contract/test_parity.py --write-parity`` writes docs/parity.md.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import pytest
import pytest_asyncio

from backends.fake import FakeBackend, FakeOptions
from scheduler.options import SchedulerOptions
from tests.contract.behaviours import BEHAVIOURS, MAX_ROWS, Behaviour
from tests.contract.every_wire import Outcome, every_wire
from tests.contract.parity_table import table
from tests.fixtures.behind_front_ends import MakeFrontEnds
from tests.fixtures.serving import serving

PAGE = Path(__file__).parents[2] / "docs" / "parity.md"
# By the behaviour's name and the wire's.
Found: TypeAlias = Mapping[str, Mapping[str, Outcome]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def found(certificates: Path, front_ends: MakeFrontEnds) -> Found:
    """Everything asked of every wire, of one server."""
    fake = FakeBackend(FakeOptions(max_batch_rows=64))
    options = SchedulerOptions(max_request_rows=MAX_ROWS)
    far = front_ends()
    running = serving(fake, certificates, options, front_ends=far)
    async with running as served, every_wire(served) as wires:
        return {
            behaviour.name: {
                wire: await behaviour.ask(asker, fake) for wire, asker in wires.items()
            }
            for behaviour in BEHAVIOURS
        }


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: behaviour.name)
def test_every_wire_answers_alike(behaviour: Behaviour, found: Found) -> None:
    outcomes = found[behaviour.name]
    alike = [outcome for wire, outcome in outcomes.items() if wire not in behaviour.not_in]
    if behaviour.code is None:
        assert not any(outcome.status for outcome in alike), outcomes
        assert len({outcome.scores for outcome in alike}) == 1, outcomes
    else:
        assert all(behaviour.code in outcome.codes for outcome in alike), outcomes
        assert not any("secret" in outcome.detail for outcome in alike)
    if behaviour.same_words:
        assert len({outcome.detail for outcome in alike}) == 1, outcomes


def test_the_parity_page_says_what_the_server_does(
    found: Found, request: pytest.FixtureRequest
) -> None:
    page = table(found)
    if request.config.getoption("--write-parity"):
        PAGE.write_text(page)
    assert PAGE.read_text() == page, "out of date: pytest tests/contract --write-parity"
