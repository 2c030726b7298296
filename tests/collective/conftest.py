"""One server and one process to fork callers from, for every test: both import PyTorch."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.collective.serving import LIMIT, Met, Peers, collective_served, forked_peers


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def peers() -> AsyncIterator[Peers]:
    """Forks callers."""
    async with forked_peers() as forked:
        yield forked


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def met(peers: Peers) -> AsyncIterator[Met]:
    """One server for all tests: what a caller does to it shows in the next."""
    async with collective_served(
        max_message_bytes=LIMIT, max_buffered_bytes=LIMIT, max_connections=8
    ) as served:
        await peers.ready()
        yield served
