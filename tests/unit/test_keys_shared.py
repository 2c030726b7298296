"""The limits of keys where several processes take requests by the same keys."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from app.access.account import Account
from app.access.keys import KeyOptions
from app.access.ledger import CELL, CELLS, Ledger
from scheduler.errors import ServingError

HASH = ("0" * 64,)


@pytest.fixture
def ledgers() -> Iterator[list[Ledger]]:
    """One process's, and another's."""
    first = Ledger.make()
    yield [first, Ledger(first.descriptor)]
    first.close()


class Clock:
    """A clock that stands still."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def account(ledger: Ledger, clock: Clock, name: str = "ranker", **limits: Any) -> Account:
    return Account(name, KeyOptions(HASH, **limits), clock, ledger)


def accepted(one: Account) -> bool:
    try:
        one.begin()
    except ServingError:
        return False
    return True


def test_what_one_process_takes_another_does_not_have(ledgers: list[Ledger]) -> None:
    clock = Clock()
    here, there = [account(ledger, clock, requests_per_s=1, burst_s=3) for ledger in ledgers]
    assert [accepted(one) for one in (here, there, here, there, here)] == [True] * 3 + [False] * 2
    clock.now_s += 1
    assert [accepted(one) for one in (there, here)] == [True, False]


def test_rows_and_requests_are_shared_and_a_refusal_takes_nothing(ledgers: list[Ledger]) -> None:
    clock = Clock()
    here, there = [account(one, clock, requests_per_s=100, rows_per_s=10) for one in ledgers]
    here.begin()
    here.spend(6)
    there.begin()
    with pytest.raises(ServingError, match="10 rows a second"):
        there.spend(6)
    there.spend(4)
    with pytest.raises(ServingError, match="10 rows a second"):
        here.begin()


def test_a_process_that_starts_anew_finds_what_was_left(ledgers: list[Ledger]) -> None:
    clock = Clock()
    assert accepted(account(ledgers[0], clock, requests_per_s=1))
    assert not accepted(account(ledgers[1], clock, requests_per_s=1))
    assert accepted(account(ledgers[1], clock, requests_per_s=2))  # other limits
    assert accepted(account(ledgers[1], clock, name="other", requests_per_s=1))


def test_places_are_others_only_once_all_is_there_again(ledgers: list[Ledger]) -> None:
    clock = Clock()
    for number in range(3 * CELLS):
        assert accepted(account(ledgers[0], clock, f"k{number}", requests_per_s=1))
    known = [account(ledgers[1], clock, f"k{n}", requests_per_s=1) for n in range(CELLS)]
    assert sum(map(accepted, known)) < CELLS // 4  # most are remembered, and none by another's name
    clock.now_s += 2
    assert accepted(account(ledgers[1], clock, "new", requests_per_s=1))
    assert not accepted(account(ledgers[0], clock, "new", requests_per_s=1))


def test_keys_without_limits_are_in_no_ledger(ledgers: list[Ledger]) -> None:
    account(ledgers[0], Clock()).begin()
    assert not any(ledgers[0].memory[: CELLS * CELL.size])


HOLDS = (
    "import fcntl, sys; fcntl.lockf(int(sys.argv[1]), fcntl.LOCK_EX);"
    "print(flush=True); sys.stdin.read()"
)


def test_a_process_that_stops_with_the_lock_holds_up_nobody(ledgers: list[Ledger]) -> None:
    clock, ledger = Clock(), ledgers[0]
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(ledger.descriptor)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[ledger.descriptor],
    ) as holder:  # fmt: skip
        assert holder.stdout is not None
        assert holder.stdout.readline()
        here = account(ledger, clock, requests_per_s=1)
        assert [accepted(here), accepted(here)] == [True, False]
        holder.communicate(b"")
