"""Who answers what: shares of the requests that are sticky by key."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scheduler.routing import Part, alike, pick
from scheduler.types import ModelSpec, TensorSpec

CANARIES = [f"user-{number}" for number in (60, 69, 71, 72, 75, 79, 91, 98)]
KEYS = [f"user-{number}" for number in range(4000)]


def parts(**weights: float) -> list[Part]:
    """Return a part for each weight, all of versions of their own."""
    return [
        Part(name, str(number), weight) for number, (name, weight) in enumerate(weights.items())
    ]


def of_each(split: list[Part], model: str = "m") -> dict[str, str]:
    return {key: pick(split, model, key).name for key in KEYS}


def test_the_weights_are_the_shares_of_all_keys() -> None:
    counts = Counter(of_each(parts(stable=70, canary=20, trial=10)).values())
    assert abs(counts["stable"] - 2800) < 150
    assert abs(counts["canary"] - 800) < 150
    assert abs(counts["trial"] - 400) < 150


def test_a_growing_part_takes_keys_from_the_others_and_loses_none() -> None:
    before, after = (of_each(parts(stable=90, trial=5, canary=each)) for each in (5, 20))
    moved = {key for key in KEYS if before[key] != after[key]}
    assert moved
    assert {after[key] for key in moved} == {"canary"}


def test_a_label_that_moves_to_another_version_takes_its_keys_with_it() -> None:
    before = [Part("stable", "3", 1), Part("canary", "4", 1)]
    after = [Part("stable", "3", 1), Part("canary", "5", 1)]
    for key in KEYS[:200]:
        assert pick(before, "m", key).name == pick(after, "m", key).name


def test_two_models_do_not_split_their_users_alike() -> None:
    split = parts(stable=1, canary=1)
    one, other = of_each(split, "one"), of_each(split, "other")
    same = sum(one[key] == other[key] for key in KEYS)
    assert abs(same - 2000) < 300


def test_the_choice_is_the_same_in_every_process_and_release() -> None:
    split = parts(stable=90, canary=10)
    canaries = [key for key in KEYS[:100] if pick(split, "ranking", key).name == "canary"]
    # What no later change may move: users would change their version.
    assert canaries == CANARIES


@given(st.text(max_size=50), st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=5))
def test_any_key_belongs_to_one_part(key: str, weights: list[float]) -> None:
    split = [Part(str(number), str(number), weight) for number, weight in enumerate(weights)]
    chosen = pick(split, "m", key)
    assert chosen in split
    assert pick(split[::-1], "m", key) == chosen


def test_versions_are_alike_if_they_take_and_give_the_same_tensors() -> None:
    def spec(version: str, width: int, rows: int = 8) -> ModelSpec:
        tensor = TensorSpec("x", np.dtype(np.float32), ("rows", width))
        return ModelSpec("m", version, (tensor,), (tensor,), rows)

    assert alike(spec("1", 3), spec("2", 3, rows=64))
    assert not alike(spec("1", 3), spec("2", 4))
