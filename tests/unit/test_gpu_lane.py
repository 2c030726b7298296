"""One lane on a fake device: order of work, memory that runs out, errors that stick."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from backends.dlrm.gather import DENSE, IDS
from backends.jagged import JaggedLayout
from backends.torch_dlrm.gpu.lane import Lane
from backends.torch_dlrm.gpu.limit import RowLimit
from backends.torch_dlrm.gpu.packing import Form, Packer, buckets_up_to, padded_to
from scheduler.errors import Code, DeviceLostError, ServingError
from scheduler.types import Array, Batch, InferRequest
from tests.fixtures.fake_gpu import ILLEGAL, FakeGpu, no_memory

FORM = Form(JaggedLayout(IDS, ("a", "b"), np.array([100, 100])), 3)
ROWS = 8


def forward(
    dense: torch.Tensor, lengths: torch.Tensor, ids: torch.Tensor
) -> dict[str, torch.Tensor]:
    """A row's dense values, and its ids of each feature with a weight."""
    ends = lengths.cumsum(0)
    sums = torch.cat((torch.zeros(1), ids.cumsum(0)))
    bags = (sums[ends] - sums[ends - lengths]).view(2, -1)
    return {"s": dense.sum(1) + bags[0] + 1000 * bags[1]}


def batch(*rows: int) -> Batch:
    """Requests of so many rows, one id a bag, all different."""
    requests = []
    for number, count in enumerate(rows, 1):
        inputs: dict[str, Array] = {
            DENSE: np.full((count, 3), number, np.float32),
            f"{IDS}.lengths": np.ones((2, count), np.int64),
            f"{IDS}.values": np.arange(2 * count, dtype=np.int64) + 10 * number,
        }
        requests.append(InferRequest("", count, inputs))
    return Batch(tuple(requests))


class Rig:
    """A lane with graphs for all buckets, on a fake device."""

    def __init__(self, run: Callable[..., dict[str, torch.Tensor]] = forward) -> None:
        self.gpu, self.limit = FakeGpu(), RowLimit(ROWS)
        size = FORM.size_bytes(ROWS, 4 * ROWS)
        self.lane = Lane(self.gpu, FORM, run, self.limit, size)
        self.buckets = buckets_up_to(ROWS)
        self.packer = Packer(FORM, self.buckets, size, self.gpu.pinned)

    def capture(self) -> "Rig":
        for rows in self.buckets:
            self.lane.capture(rows)
        return self

    def run(self, *rows: int) -> Array:
        return self.lane.run(self.packer.gather(batch(*rows)))["s"]


def test_a_graph_gives_what_the_operators_give_also_when_rows_are_padded() -> None:
    graphs, plain = Rig().capture(), Rig()
    for rows in ((8,), (3, 2), (1,), (5, 3), (7,)):
        np.testing.assert_array_equal(graphs.run(*rows), plain.run(*rows))
    assert graphs.gpu.replays == 5
    assert plain.gpu.replays == 0


def test_one_batch_takes_one_replay_and_nothing_else() -> None:
    rig = Rig().capture()
    before = rig.gpu.runs
    rig.run(5)
    assert (rig.gpu.runs - before, rig.gpu.replays) == (1, 1)


def test_no_rows_and_more_ids_than_a_graph_has_room_for_run_without_one() -> None:
    rig = Rig().capture()
    many = batch(1).requests[0]
    inputs = {
        **many.inputs,
        f"{IDS}.lengths": np.array([[90], [10]]),
        f"{IDS}.values": np.ones(100, np.int64),
    }
    packed = rig.packer.gather(Batch((InferRequest("", 1, inputs),)))
    assert rig.lane.run(packed)["s"].tolist() == [3 + 90 + 10_000]
    assert rig.gpu.replays == 0
    assert rig.run(1).tolist() == [3 + 10 + 11_000]
    assert rig.run(0).size == 0


def test_answers_stay_what_they_were_when_the_buffers_are_used_again() -> None:
    rig = Rig().capture()
    first = rig.run(4)
    kept = first.copy()
    rig.run(8)
    np.testing.assert_array_equal(first, kept)


def test_buckets_hold_every_size_with_little_to_spare() -> None:
    buckets = buckets_up_to(2048)
    assert (buckets[0], buckets[-1]) == (1, 2048)
    assert list(buckets) == sorted(set(buckets))
    for rows in range(1, 2049):
        assert rows <= padded_to(buckets, rows) < 2 * rows
    assert padded_to(buckets, 5000) == 5000
    assert buckets_up_to(100)[-1] == 100


def short_of_memory(most: int) -> Callable[..., dict[str, torch.Tensor]]:
    def run(
        dense: torch.Tensor, lengths: torch.Tensor, ids: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        if len(dense) > most:
            raise no_memory()
        return forward(dense, lengths, ids)

    return run


def test_a_batch_without_memory_fails_alone_and_later_ones_are_smaller_until_it_goes_well() -> None:
    rig = Rig(short_of_memory(4))
    with pytest.raises(ServingError, match="no memory for a batch of 8 rows") as caught:
        rig.run(8)
    assert caught.value.code is Code.OVERLOADED
    assert (rig.limit.rows, rig.gpu.releases) == (4, 1)
    with pytest.raises(ServingError, match="a batch of 5 rows"):
        rig.limit.check(5)
    for _ in range(256):
        rig.limit.check(4)
        assert rig.run(4).size == 4
    assert rig.limit.rows == 8
    rig.limit.check(8)


def test_one_row_is_always_tried() -> None:
    rig = Rig(short_of_memory(0))
    for _ in range(3):
        rig.limit.check(1)
        with pytest.raises(ServingError):
            rig.run(1)


@pytest.mark.parametrize("place", ["before_run", "before_wait"])
def test_an_error_that_sticks_means_the_device_is_lost(place: str) -> None:
    rig = Rig().capture()

    def fail() -> None:
        raise RuntimeError(ILLEGAL)

    setattr(rig.gpu, place, fail)
    with pytest.raises(DeviceLostError, match="illegal memory access"):
        rig.run(2)


@pytest.mark.parametrize("computes", [True, False])
def test_an_error_that_may_pass_is_a_loss_if_nothing_computes_any_more(computes: bool) -> None:
    rig = Rig()
    rig.gpu.computes = computes

    def fail() -> None:
        raise RuntimeError("CUDA error: invalid argument")

    rig.gpu.before_run = fail
    with pytest.raises(RuntimeError if computes else DeviceLostError, match="invalid argument"):
        rig.run(2)


def test_an_error_of_the_model_is_passed_on_and_the_copy_before_it_has_been_read() -> None:
    def run(*views: torch.Tensor) -> dict[str, torch.Tensor]:
        raise RuntimeError("shapes do not fit")

    rig = Rig(run)
    for rows in (2, 3):
        with pytest.raises(RuntimeError, match="shapes do not fit"):
            rig.run(rows)
