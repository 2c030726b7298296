"""What an observer hears of every request and of every batch."""

from dataclasses import dataclass
from typing import Final

from scheduler.errors import Code
from scheduler.types import Timing, Trace


@dataclass(slots=True)
class Answered:
    """One request as its transport saw it; ``code`` is None for success.

    ``model`` and ``version`` are what is served, "" if the request named nothing that is.
    ``trace_id`` is that of its trace (W3C), if it is a part of one, ``trace`` what ``traced`` said.
    ``operation`` is what was called: a gRPC method in full, an HTTP method and path; ``protocol``
    is the version of HTTP that it came by, ``http_status`` that of the answer (0 for gRPC).
    ``timing`` is that of the model's answer, if it gave one.
    """

    transport: Final[str]
    model: Final[str]
    rows: Final[int]
    code: Final[Code | None]
    duration_s: Final[float]
    request_id: Final[str]
    detail: Final[str]
    version: Final[str]
    trace_id: Final[str]
    trace: Final[Trace | None]
    operation: Final[str]
    protocol: Final[str]
    http_status: Final[int]
    bytes_in: Final[int]
    bytes_out: Final[int]
    timing: Final[Timing | None]

    def __init__(  # noqa: PLR0913, PLR0917  # its fields
        self,
        transport: str,
        model: str,
        rows: int,
        code: Code | None,
        duration_s: float,
        request_id: str = "",
        detail: str = "",
        version: str = "",
        trace_id: str = "",
        trace: Trace | None = None,
        operation: str = "",
        protocol: str = "",
        http_status: int = 0,
        bytes_in: int = 0,
        bytes_out: int = 0,
        timing: Timing | None = None,
    ) -> None:
        self.transport = transport
        self.model = model
        self.rows = rows
        self.code = code
        self.duration_s = duration_s
        self.request_id = request_id
        self.detail = detail
        self.version = version
        self.trace_id = trace_id
        self.trace = trace
        self.operation = operation
        self.protocol = protocol
        self.http_status = http_status
        self.bytes_in = bytes_in
        self.bytes_out = bytes_out
        self.timing = timing


@dataclass(slots=True)
class Computed:
    """One batch that a lane has finished; ``queue_s`` has the wait of each request in it.

    ``gather_s`` and ``compute_s`` are the lane's, ``lane`` its number. It began ``started_s`` on
    the scheduler's clock, with the gathering unless that was done ``ahead``. ``traces`` has what
    ``traced`` said of each request.
    """

    model: Final[str]
    rows: Final[int]
    ids: Final[int]
    lane: Final[int]
    gather_s: Final[float]
    compute_s: Final[float]
    queue_s: Final[tuple[float, ...]]
    version: Final[str]
    started_s: Final[float]
    ahead: Final[bool]
    traces: Final[tuple[Trace | None, ...]]

    def __init__(  # noqa: PLR0913, PLR0917  # its fields
        self,
        model: str,
        rows: int,
        ids: int,
        lane: int,
        gather_s: float,
        compute_s: float,
        queue_s: tuple[float, ...],
        version: str = "",
        started_s: float = 0.0,
        ahead: bool = False,
        traces: tuple[Trace | None, ...] = (),
    ) -> None:
        self.model = model
        self.rows = rows
        self.ids = ids
        self.lane = lane
        self.gather_s = gather_s
        self.compute_s = compute_s
        self.queue_s = queue_s
        self.version = version
        self.started_s = started_s
        self.ahead = ahead
        self.traces = traces
