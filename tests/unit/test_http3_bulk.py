"""Datagrams in bulk: cut and put together as they were, with and without the kernel's help."""

import errno
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transports.http3.bulk import (
    MOST_SEGMENT_BYTES,
    MOST_SEGMENTS,
    SOL_UDP,
    BulkSocket,
    runs,
    segments,
)

HERE, THERE = ("127.0.0.1", 1), ("127.0.0.1", 2)


def udp() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind(("127.0.0.1", 0))
    made.setblocking(False)
    return made


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with udp() as first, udp() as second:
        yield first, second


def received(bulk: BulkSocket) -> list[bytes]:
    """Return all that has arrived; on loopback what was sent has."""
    datagrams: list[bytes] = []
    while True:
        try:
            data, step, _ = bulk.receive()
        except BlockingIOError:
            return datagrams
        datagrams += segments(data, step)


@given(st.lists(st.tuples(st.integers(1, 1500), st.sampled_from([HERE, THERE])), max_size=200))
def test_runs_are_what_the_kernel_can_cut_and_keep_the_order(
    sizes: list[tuple[int, tuple[str, int]]],
) -> None:
    datagrams = [(bytes(size), address) for size, address in sizes]
    made = list(runs(datagrams))
    assert [(datagram, to) for run, to in made for datagram in run] == datagrams
    for run, _ in made:
        assert {len(datagram) for datagram in run[:-1]} <= {len(run[0])}
        assert len(run[-1]) <= len(run[0])
        assert len(run) <= MOST_SEGMENTS
        assert sum(map(len, run)) <= MOST_SEGMENT_BYTES
        assert segments(b"".join(run), len(run[0])) == run


@pytest.mark.parametrize("coalesces", [True, False])
@pytest.mark.parametrize("cuts", [True, False])
def test_what_is_sent_arrives_whether_or_not_the_kernel_helps(
    pair: tuple[socket.socket, socket.socket], cuts: bool, coalesces: bool
) -> None:
    sender, receiver = BulkSocket(pair[0]), BulkSocket(pair[1])
    sender.cuts = cuts and sender.cuts
    if not coalesces and receiver.coalesces:
        pair[1].setsockopt(SOL_UDP, 104, 0)
    sizes = [1200, 1200, 1200, 500, 1200, 40, 1, 1, *[1200] * 80]
    sent = [bytes([number]) * size for number, size in enumerate(sizes)]
    sender.send([(datagram, pair[1].getsockname()) for datagram in sent])
    assert received(receiver) == sent


class Uncut(socket.socket):
    """A socket whose way out cannot cut, as where a network device computes no checksums."""

    def sendmsg(self, *arguments: object) -> int:
        if arguments[1]:
            raise OSError(errno.EIO, "no checksums")
        return super().sendmsg(*arguments)  # type: ignore[arg-type]


def test_a_way_out_that_cannot_cut_is_noticed_and_nothing_is_lost(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    with Uncut(socket.AF_INET, socket.SOCK_DGRAM) as device:
        sender, receiver = BulkSocket(device), BulkSocket(pair[1])
        sender.cuts = True
        sent = [bytes([number]) * 1200 for number in range(10)]
        sender.send([(datagram, pair[1].getsockname()) for datagram in sent])
        assert received(receiver) == sent
        assert not sender.cuts


def test_a_kernel_without_the_options_is_taken_as_it_is() -> None:
    class Old(socket.socket):
        def setsockopt(self, level: int, *arguments: object) -> None:
            if level == SOL_UDP:
                raise OSError(errno.ENOPROTOOPT, "no such option")
            super().setsockopt(level, *arguments)  # type: ignore[call-overload]

    with Old(socket.AF_INET, socket.SOCK_DGRAM) as old:
        bulk = BulkSocket(old)
        assert (bulk.cuts, bulk.coalesces) == (False, False)


def test_what_the_kernel_does_not_take_is_dropped(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    sender = BulkSocket(pair[0])
    pair[0].close()
    sender.send([(bytes(1200), pair[1].getsockname())] * 3)
    assert received(BulkSocket(pair[1])) == []


def test_an_address_that_takes_nothing_slows_down_nobody_else(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    bulk = BulkSocket(pair[0])
    before = bulk.cuts
    bulk.send([(b"x" * 100, ("127.0.0.1", 0))] * 3)
    assert bulk.cuts == before
