"""A front end that says what makes no sense is given up, and nobody else hears of it."""

from collections.abc import AsyncIterator

import orjson
import pytest

from app.frontends.slots import Arena, Slot
from app.frontends.wire import Frame, Kind
from tests.fixtures.far_engine import Far, far, until
from tests.fixtures.gates import make_request


@pytest.fixture
async def both() -> AsyncIterator[Far]:
    """An engine and a front end's."""
    async with far() as both:
        yield both


LIES = {
    "no such kind": b"\xff" * 16,
    "half a head": b"\x02",
    "a longer payload than there is": b"\x02\x00\x00\x00\xff\xff\x00\x00" + bytes(8),
}


@pytest.mark.parametrize("name", LIES)
async def test_a_front_end_that_says_nonsense_is_given_up(both: Far, name: str) -> None:
    await both.remote.infer(make_request(1))
    both.to_engine._socket.send(LIES[name])
    await _given_up(both)


@pytest.mark.parametrize(
    "slot",
    [
        Slot(0, 4096, 10**6), Slot(64, 4096, 1), Slot(0, 1 << 40, 1), Slot(1 << 40, 4096, 1),
        Slot(0, 0, 0),
    ],
)  # fmt: skip
async def test_a_slot_that_is_none_is_not_looked_at(both: Far, slot: Slot) -> None:
    await _lie(both, slot, [])


@pytest.mark.parametrize(
    "placed",
    [
        ["x", "float32", [1 << 62], 64],
        ["x", "object", [1], 64],
        ["x", "int64", [-1], 64],
        ["x", "int64", [1], 63],
        ["x", "int64", [1], 1 << 50],
        ["x", "int64", [1] * 9, 64],
        ["x", "int64", [0, 1 << 62], 64],
        [1, "int64", [1], 64],
        ["x"],
    ],
)
async def test_a_tensor_that_is_not_in_its_slot_is_not_looked_at(
    both: Far, placed: list[object]
) -> None:
    arena: Arena = both.remote._arena
    await _lie(both, arena.take(4096), [placed])


async def _lie(both: Far, slot: Slot, placed: list[object]) -> None:
    fields = [
        (slot.offset, slot.size, slot.generation), "fake", 1, "", None, None, [], 0, "", "", None,
        None, placed, [],
    ]  # fmt: skip
    both.to_engine.send(Frame(Kind.INFER, 7, orjson.dumps(fields)))
    await _given_up(both)


async def _given_up(both: Far) -> None:
    await until(lambda: bool(both.lost))
    assert "not understood" in both.lost[0]
    assert (await both.engine.infer(make_request(1))).outputs["default"].shape == (1,)
