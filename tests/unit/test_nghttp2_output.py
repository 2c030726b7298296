"""When a connection writes."""

import asyncio

import ngh2

from transports.grpc.nghttp2.output import Output


class Kept(asyncio.Transport):
    """Keep what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))


def output_to(transport: Kept) -> tuple[Output, ngh2.Connection]:
    h2 = ngh2.Connection(ngh2.Role.SERVER)
    h2.initiate_connection({})
    return Output(h2, transport, lambda: None), h2


async def test_what_is_to_be_written_soon_is_written_at_the_end_of_the_turn_once() -> None:
    transport = Kept()
    output, _ = output_to(transport)
    output.soon()
    output.soon()
    assert transport.written == []
    await asyncio.sleep(0)
    assert len(transport.written) == 1


async def test_a_flush_writes_at_once_what_was_left_for_the_end_of_the_turn() -> None:
    transport = Kept()
    output, h2 = output_to(transport)
    output.soon()
    output.flush()
    assert len(transport.written) == 1
    h2.ping()  # nobody said that it is to be written
    await asyncio.sleep(0)
    assert len(transport.written) == 1


async def test_there_is_nothing_to_flush_if_nothing_was_to_be_written() -> None:
    transport = Kept()
    output_to(transport)[0].flush()
    assert transport.written == []
