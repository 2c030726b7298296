"""A front end's observer: tells the engine's what it hears, many records at a time."""

import asyncio
import logging

from app.frontends.channel import Channel
from app.frontends.client import RemoteEngine
from app.frontends.records import Keyed, Record, encode_records
from app.frontends.wire import Frame, Kind
from scheduler.observer import Answered, Observer

logger = logging.getLogger(__name__)

# What is told at the latest so long after it was heard; killed, a front end loses no more.
_PERIOD_S = 0.01
# Told at once, even so.
_MOST_AT_ONCE = 256
# An engine that takes so little is one that hangs: what it has not heard by then is dropped.
_MOST_WAITING_BYTES = 4 * 1024 * 1024


class Reporter(Observer):
    """Report by ``channel``, once there is one."""

    def __init__(self) -> None:
        self._channel: Channel | None = None
        self._engine: RemoteEngine | None = None
        self._records: list[Record] = []
        self._lost = 0
        self._timer: asyncio.TimerHandle | None = None

    def connect(self, channel: Channel, engine: RemoteEngine) -> None:
        """Report by ``channel`` from now on; ``engine`` is asked for metrics."""
        self._channel, self._engine = channel, engine

    def answered(self, record: Answered) -> None:
        """Keep it for a moment."""
        self._keep(record)

    def keyed(self, key: str, outcome: str) -> None:
        """Keep what became of a request by the name of its key."""
        self._keep(Keyed(key, outcome))

    async def scraped(self, accept: str) -> tuple[bytes, str]:
        """Return what the engine's observer exposes. Raises ServingError."""
        assert self._engine is not None
        self.flush()
        body, content_type = await self._engine.call("scrape", accept)
        return body.encode(), content_type

    def tell(self) -> None:
        """Report what was kept, and say that it is done."""
        self.flush()
        if self._channel is not None:
            self._channel.send(Frame(Kind.TOLD))

    def flush(self) -> None:
        """Tell what was kept."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._records and self._channel is not None:
            self._report(self._channel)
        self._records.clear()

    def _report(self, channel: Channel) -> None:
        if channel.waiting_bytes > _MOST_WAITING_BYTES:
            self._lost += len(self._records)
            return
        if self._lost:
            logger.warning("%d requests are missing in the metrics: the engine hung", self._lost)
            self._lost = 0
        channel.send(Frame(Kind.RECORDS, 0, encode_records(self._records)))

    def _keep(self, record: Record) -> None:
        self._records.append(record)
        if len(self._records) >= _MOST_AT_ONCE:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_PERIOD_S, self.flush)
