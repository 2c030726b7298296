"""Answers nobody reads: whoever owes most is cut, whoever reads is not."""

from dataclasses import dataclass, field

from transports.http.unsent import Unsent


@dataclass(eq=False)
class Connection:
    """Owes what the test says."""

    unsent: Unsent
    unsent_bytes: int = 0
    cut: list[int] = field(default_factory=list)

    def cut_unread(self) -> None:
        """Remember what was owed."""
        self.cut.append(self.unsent_bytes)

    def answers(self, size_bytes: int, unread_bytes: int) -> None:
        """Write an answer of which some part is not read."""
        self.unsent_bytes += unread_bytes
        self.unsent.add(self, size_bytes)


def test_a_client_that_reads_is_never_cut_however_much_it_asks() -> None:
    reader = Connection(Unsent(100))
    for _ in range(1000):
        reader.answers(60, unread_bytes=0)
    assert not reader.cut


def test_those_that_owe_most_are_cut_until_half_of_the_limit_is_free() -> None:
    unsent = Unsent(100)
    owes = [Connection(unsent) for _ in range(4)]
    for connection, size_bytes in zip(owes, (10, 50, 20, 30), strict=True):
        connection.answers(size_bytes, unread_bytes=size_bytes)
    assert [connection.cut for connection in owes] == [[], [50], [], [30]]


def test_what_a_closed_connection_owed_is_free_again() -> None:
    unsent = Unsent(100)
    gone, stays = Connection(unsent), Connection(unsent)
    gone.answers(90, unread_bytes=90)
    unsent.forget(gone)
    stays.answers(90, unread_bytes=90)
    assert not gone.cut
    assert not stays.cut
    unsent.forget(gone)


def test_a_single_answer_over_the_limit_is_cut_off() -> None:
    connection = Connection(Unsent(100))
    connection.answers(101, unread_bytes=101)
    assert connection.cut == [101]
