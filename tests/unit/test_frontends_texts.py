"""Texts for ids on their way from a front end to the engine, which has the vocabularies."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import numpy as np
import orjson
import pytest

from app.frontends.texts import FarVocabulary, Texts, Tokens, looked_up
from app.frontends.wire import Frame, Kind
from backends.fake import FakeBackend
from backends.ids.declared import Declared, make_rules
from backends.ids.rules import IdRules
from backends.ids.vocabulary import Vocabulary
from scheduler.errors import Code, ServingError
from scheduler.types import InferRequest
from tests.fixtures.far_engine import Far, far, until
from tests.fixtures.gates import make_request

VALUES = "id_list_features.values"


class TextBackend(FakeBackend):
    """The fake, with a vocabulary of its second feature."""

    def load(self) -> None:
        known = Vocabulary({"anna": 7, "b\u00e9la": 9})
        policies = make_rules(self._layout, Declared(), ["cat_1=zero"]).parsed
        self._rules = IdRules(self._layout, policies, {"cat_1": known})


@pytest.fixture
async def both() -> AsyncIterator[Far]:
    """An engine and a front end's."""
    async with far(kind=TextBackend) as both:
        yield both


def with_values(values: list[int] | np.ndarray) -> InferRequest:
    """Return a request of one row: one id of the first feature, two of the second."""
    request = make_request(1)
    lengths = np.array([[1], [2]], np.int64)
    values = np.array(values, np.int64)
    return replace(
        request, inputs={**request.inputs, "id_list_features.lengths": lengths, VALUES: values}
    )


async def test_a_text_is_looked_up_by_the_engine_s_vocabulary(both: Far) -> None:
    vocabulary = both.remote.spec("fake").vocabularies["cat_1"]
    for texts, rows in ((["b\u00e9la", "anna"], [9, 7]), (["anna", "anna"], [7, 7])):
        expected = await both.engine.infer(with_values([3, *rows]))
        asked = with_values([3, *vocabulary.ids_of(texts)])
        answer = await both.remote.infer(asked)
        np.testing.assert_array_equal(answer.outputs["default"], expected.outputs["default"])
    counted = both.recorder.ids.total()
    await both.remote.infer(with_values([3, *vocabulary.ids_of(["nobody", "anna"])]))
    assert both.recorder.ids.total() == counted + 1
    await until(lambda: not both.remote.slot_bytes and not both.session.slots)


async def test_a_model_that_has_lost_its_vocabulary_meanwhile_is_asked_again(both: Far) -> None:
    found = [Texts(VALUES, "cat_0", [0], ["anna"])]
    with pytest.raises(ServingError, match="without the vocabulary of 'cat_0'") as refusal:
        looked_up(both.engine, with_values([1, 2, 3]), found)
    assert refusal.value.code is Code.UNAVAILABLE


async def test_tokens_are_found_wherever_they_stand_and_nothing_else_is() -> None:
    tokens = Tokens()
    one, other = FarVocabulary(tokens, "a"), FarVocabulary(tokens, "b")
    plain = np.array([1, -1, -(2**63), 2**63 - 1])
    assert tokens.found({"x": plain}) == []
    first, second = one.ids_of(["p", "q"]), other.ids_of(["r"])
    mixed = np.concatenate([plain, second, first[::-1], plain, first])
    assert tokens.found({"x": plain, "y": mixed, "z": mixed.reshape(1, -1)}) == [
        Texts("y", "b", [4], ["r"]),
        Texts("y", "a", [5, 6, 11, 12], ["q", "p", "p", "q"]),
    ]


async def test_tokens_are_forgotten_and_none_is_taken_for_an_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.frontends.texts._KEPT_S", 0.001)
    tokens = Tokens()
    old = tokens.make("a", ["p"])
    while tokens._blocks:  # noqa: ASYNC110  # a timer sets no event
        await asyncio.sleep(0.001)
    tokens.make("a", ["q"])
    with pytest.raises(ServingError) as refusal:
        tokens.found({"x": old})
    assert refusal.value.code is Code.INTERNAL


@pytest.mark.parametrize(
    "texts",
    [
        [["nothing", "cat_1", [0], ["anna"]]],
        [[VALUES, "cat_1", [3], ["anna"]]],
        [[VALUES, "cat_1", [-1], ["anna"]]],
        [[VALUES, "cat_1", [0], []]],
        [[VALUES, "cat_1", [0], [7]]],
        [[VALUES, 7, [0], ["anna"]]],
        [["x", "cat_1", [0], ["anna"]]],
        [VALUES],
    ],
)
async def test_texts_that_have_no_place_are_not_looked_at(both: Far, texts: list[object]) -> None:
    slot = both.remote._arena.take(4096)
    placed = [[VALUES, "int64", [3], 64], ["x", "float32", [3], 128]]
    fields = [
        (slot.offset, slot.size, slot.generation), "fake", 1, "", None, None, [], 0, "", "", None,
        None, placed, texts,
    ]  # fmt: skip
    both.to_engine.send(Frame(Kind.INFER, 7, orjson.dumps(fields)))
    await until(lambda: bool(both.lost))
    assert "not understood" in both.lost[0]
