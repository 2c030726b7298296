"""What is still being written is not seen until it has come to rest."""

from hypothesis import given, settings
from hypothesis import strategies as st

from app.repository.listing import FoundModel, FoundVersion, Listing
from app.repository.settle import Settler


def listing(config: str = "", **versions: str) -> Listing:
    """Return a listing of one model; its versions are v1, v2, ..., with these signatures."""
    found = {name[1:]: FoundVersion(signature) for name, signature in versions.items()}
    return {"m": FoundModel(config, found)}


def test_a_change_is_passed_on_once_it_has_been_seen_unchanged_for_long_enough() -> None:
    settler = Settler(2.0)
    old = settler.adopt(listing(v1="a"))
    assert settler.look(listing(v1="a", v2="half"), 10.0) == old
    assert settler.waits
    assert settler.look(listing(v1="a", v2="more"), 12.0) == old
    assert settler.look(listing(v1="a", v2="more"), 13.9) == old
    assert settler.look(listing(v1="a", v2="more"), 14.0) == listing(v1="a", v2="more")
    assert not settler.waits


def test_a_change_that_is_taken_back_never_happened() -> None:
    settler = Settler(2.0)
    old = settler.adopt(listing(v1="a"))
    assert settler.look(listing(v1="b"), 10.0) == old
    assert settler.look(old, 11.0) == old
    assert settler.look(listing(v1="b"), 12.5) == old  # counts anew


def test_what_is_gone_is_seen_for_as_long() -> None:
    settler = Settler(2.0)
    old = settler.adopt(listing(v1="a", v2="b"))
    assert settler.look(listing(v2="b"), 10.0) == old
    assert settler.look({}, 11.0) == old
    assert settler.look({}, 12.0) == listing(v2="b")
    assert settler.look({}, 13.0) == {}


def test_a_config_comes_to_rest_by_itself() -> None:
    settler = Settler(2.0)
    settler.adopt(listing(v1="a"))
    settler.look(listing("new", v1="a"), 10.0)
    assert settler.look(listing("new", v1="b"), 12.0) == listing("new", v1="a")


def test_without_a_time_to_settle_everything_is_seen_at_once() -> None:
    settler = Settler(0.0)
    assert settler.look(listing("x", v1="a"), 1.0) == listing("x", v1="a")
    assert settler.look({}, 1.0) == {}


LISTINGS = st.dictionaries(
    st.sampled_from("ab"),
    st.builds(
        FoundModel,
        st.sampled_from(["", "x"]),
        st.dictionaries(
            st.sampled_from("12"), st.builds(FoundVersion, st.sampled_from("pqr")), max_size=2
        ),
    ),
)


@settings(max_examples=30)
@given(st.lists(LISTINGS, max_size=4), LISTINGS)
def test_what_stays_is_seen_in_the_end_and_nothing_is_seen_that_never_was(
    history: list[Listing], last: Listing
) -> None:
    settler = Settler(2.0)
    for number, each in enumerate(history):
        seen = settler.look(each, float(number))
        for name, model in seen.items():
            states = [(past[name].versions, past[name].config) for past in history if name in past]
            for version, found in model.versions.items():
                assert any(found == versions.get(version) for versions, _ in states)
    settler.look(last, 100.0)
    assert settler.look(last, 102.0) == last
