"""The file of API keys, what it may say, and the buckets of its limits."""

import hashlib
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.access.bucket import Bucket
from app.access.guard import Guard, guard_of
from app.access.keys import MAX_KEYS, parse_keys
from app.settings import ConfigError
from scheduler.errors import Code, ServingError

HASH = hashlib.sha256(b"secret-key").hexdigest()
OTHER_HASH = hashlib.sha256(b"other-key").hexdigest()


def table(name: str = "ranker", sha256: str = HASH, more: str = "") -> str:
    return f"[{name}]\nsha256 = '{sha256}'\n{more}\n"


def guard(path: Path, clock_s: list[float] | None = None) -> Guard:
    now_s = clock_s or [0.0]
    return Guard(path, lambda key, outcome: None, lambda: now_s[0])


def known(keys: Guard, key: str) -> bool:
    try:
        keys.caller(key)
    except ServingError as error:
        if error.code is not Code.UNAUTHENTICATED:
            raise
        return False
    return True


def test_hashes_may_be_one_or_several_and_in_either_case() -> None:
    (key,) = parse_keys(table(sha256=HASH.upper()).encode(), "keys").values()
    assert key.digests == (bytes.fromhex(HASH),)
    keys = parse_keys(f"[a]\nsha256 = ['{HASH}', '{OTHER_HASH}']".encode(), "keys")
    assert len(keys["a"].digests) == 2
    assert parse_keys(b"", "keys") == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[a", "keys: Expected ']'"),
        ("\udcff", "keys: 'utf-8' codec can't decode"),
        ("a = 1", "keys: a stands outside a [NAME] table"),
        ("[a]", "section 'a': sha256 is missing"),
        ("[a]\nsha256 = 5", "a.sha256 must be"),
        ("[a]\nsha256 = [5]", "a.sha256 must be"),
        ("[a]\nsha256 = 'secret-key'", "must be 64 hexadecimal digits (the hash of the key, not"),
        (table("a", more="rate = 5"), "section 'a' has no key 'rate'"),
        (table("a", more="rows_per_s = -1"), "rows_per_s must be 0 to 1e+12, got -1"),
        (table("a", more="rows_per_s = nan"), "rows_per_s must be 0 to 1e+12, got nan"),
        (table("a", more="burst_s = 0"), "burst_s must be 0.001 to 1e+12, got 0"),
        (table("a", more="control = 1"), "a.control must be bool"),
        (table("'a b'"), "'a b': a name has 1 to 64 of A-Z a-z 0-9 _ -"),
        (table("x" * 65), "a name has 1 to 64"),
        (table("a") + table("b"), "a and b have the same key"),
        ("\n".join(table(f"k{n}", f"{n:064x}") for n in range(MAX_KEYS + 1)), "the limit is 1000"),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_name_and_repeats_no_secret(
    text: str, words: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_keys(text.encode("utf-8", "surrogateescape"), "keys")
    assert words in str(refusal.value)
    assert HASH not in str(refusal.value)
    assert "secret" not in str(refusal.value)


def test_a_file_that_is_not_there_or_has_no_end_stops_the_start(tmp_path: Path) -> None:
    assert guard_of("", lambda key, outcome: None) is None
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(ConfigError, match=r"server\.api_keys: .* cannot be read"):
            guard_of(str(path), lambda key, outcome: None)
    with pytest.raises(ConfigError, match="has more than 1048576 bytes"):
        guard_of("/dev/zero", lambda key, outcome: None)


def test_a_new_file_is_taken_at_the_next_request_and_a_wrong_one_leaves_the_keys_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(table())
    keys = guard(file)
    assert known(keys, "secret-key")
    assert not known(keys, "other-key")
    file.write_text(table("other", OTHER_HASH))
    assert known(keys, "other-key")
    assert not known(keys, "secret-key")
    for spoil in (lambda: file.write_text("[a"), file.unlink):
        spoil()
        assert known(keys, "other-key")
        assert known(keys, "other-key")
    wrong = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert len(wrong) == 2  # each once
    assert "those before stay" in wrong[0].message
    file.write_text(table())
    assert known(keys, "secret-key")
    assert "key" not in caplog.text.replace("API keys", "").replace("keys.toml", "")


def test_hanging_up_reads_the_file_though_nothing_shows_that_it_has_changed(
    tmp_path: Path,
) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(table())
    keys = guard(file)
    text = table(sha256=OTHER_HASH)
    keys._stamp = None  # as of a file that was written to within the clock's step
    file.write_text(text)
    keys.reload()
    assert known(keys, "other-key")


def test_a_new_file_gives_no_new_burst_unless_the_limits_are_others(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(table(more="requests_per_s = 1"))
    keys = guard(file)
    caller = keys.caller("secret-key")
    caller.begin()
    file.write_text(table(more="requests_per_s = 1 # the same"))
    with pytest.raises(ServingError, match="1 requests a second"):
        caller.begin()
    file.write_text(table(more="requests_per_s = 3"))
    for _ in range(3):
        caller.begin()
    file.write_text("")
    with pytest.raises(ServingError, match="not known"):
        caller.begin()


def test_steps_of_the_clock_give_nothing() -> None:
    bucket = Bucket(rate=1, burst=2, now_s=100.0)
    bucket.take(2)
    assert bucket.wait_s(1, now_s=40.0) == 1.0  # back: nothing, and for ever after from there
    assert bucket.wait_s(1, now_s=40.5) == 0.5
    assert bucket.wait_s(1, now_s=1e9) == 0.0
    bucket.take(2)
    assert bucket.wait_s(1, now_s=1e9) == 1.0  # no more than a burst was saved


@given(
    rate=st.floats(0.5, 1000),
    burst=st.floats(1, 100),
    asked=st.lists(st.tuples(st.floats(0, 2), st.integers(0, 300)), max_size=60),
)
def test_no_more_than_a_burst_the_rate_and_one_request_gets_through(
    rate: float, burst: float, asked: list[tuple[float, int]]
) -> None:
    now_s, taken, largest = 0.0, 0, 0
    bucket = Bucket(rate, burst, now_s)
    for passed_s, amount in asked:
        now_s += passed_s
        wait_s = bucket.wait_s(amount, now_s)
        if wait_s == 0.0:
            bucket.take(amount)
            taken, largest = taken + amount, max(largest, amount)
        else:  # what it says is enough
            assert bucket.wait_s(amount, now_s + wait_s * 1.0001 + 1e-9) == 0.0
            now_s += wait_s * 1.0001 + 1e-9
    assert taken <= burst + rate * now_s + largest + 1e-6
