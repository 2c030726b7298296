"""One inference call over gRPC, whatever its service: its metadata, limits and record.

It is answered in plain steps, without a task: what it waits for, it is told (``scheduler.asking``).
"""

import logging
import math
import time

from scheduler.asking import Asked, Asker
from scheduler.engine import Engine
from scheduler.errors import Code, ServingError
from scheduler.observer import Answered
from scheduler.types import InferRequest, InferResponse, Timing
from transports.grpc.metadata import (
    KEY,
    REQUEST_ID,
    own_id,
    own_trace,
    priority_in,
    span_of,
    text_in,
    usable_id,
)
from transports.grpc.methods import Arrival
from transports.named import Named

logger = logging.getLogger(__name__)


class Intake:
    """What all calls share: who answers, how large a message may be, and the end of it all."""

    def __init__(self, engine: Engine, max_message_bytes: int) -> None:
        self.engine = engine
        self.max_message_bytes = max_message_bytes
        self.closing = False
        self._closed = False
        self._held: list[Call] = []

    def hold(self, call: "Call") -> None:
        """Keep a call until all are refused; at once, if they are."""
        self._held.append(call)
        if self._closed:
            self.close()

    def close(self) -> None:
        """Refuse the calls held and those still to come."""
        self.closing = self._closed = True
        held, self._held = self._held, []
        for call in held:
            call.answered(ServingError(Code.UNAVAILABLE, "the server is shutting down"))


class Codec:
    """A service's part in its calls. Both methods may raise ServingError."""

    def request(self, body: bytes, call: "Call") -> InferRequest:
        """Return what ``body`` asks for, with the call's part ``merged``."""
        raise NotImplementedError

    def body(self, response: InferResponse, call: "Call") -> bytes:
        """Return the answer's bytes."""
        raise NotImplementedError


class Call(Asker):
    """One request on its way.

    ``message_id`` is the id within its message, as it is written there. ``named`` is what it
    names of what was served when that was read. ``trace`` is its span, if it is traced. ``context``
    is its codec's own.
    """

    def __init__(self, intake: Intake, codec: Codec, arrival: Arrival, began_s: float) -> None:
        self.began_s = began_s
        self.trace = span_of(intake.engine.observer, arrival.metadata, began_s)
        self.timing: Timing | None = None
        self.arrival = arrival
        self.metadata = arrival.metadata
        self.timeout_s = math.inf
        self.id = own_id(arrival.metadata)
        self.named = Named()
        self.rows = 0
        self.message_id = ""
        self.context: object = None
        self._intake = intake
        self._codec = codec
        self._asked: Asked | None = None
        self._over = False
        self._bytes_in = 0

    @property
    def gone(self) -> bool:
        """Whether nobody waits any more."""
        return self._over

    def begin(self, body: bytes) -> None:
        """Have the request in ``body`` answered."""
        self._bytes_in = len(body)
        if self._intake.closing:
            self._intake.hold(self)
            return
        try:
            self._check(body)
            asked = self._intake.engine.ask(self._codec.request(body, self), self)
        except ServingError as error:
            self._end(error)
        except Exception:
            logger.exception("request %s: unexpected error", self.id)
            self._end(self._internal())
        else:
            if not self._over:
                self._asked = asked

    def merged(self, request: InferRequest, version: str = "") -> InferRequest:
        """Return the decoded ``request`` with the call's own id, deadline, priority and key.

        ``version`` is the one that the metadata name. Raises ServingError if they say
        nonsense, or the client's key may not have so many rows now.
        """
        self.rows = request.rows
        if self.arrival.caller is not None:
            self.arrival.caller.spend(request.rows)
        # The metadata's id, if there is one: it is what the client's logs call the call.
        if REQUEST_ID not in self.metadata:
            self.id = usable_id(request.id) or self.id
        return InferRequest(
            request.model,
            request.rows,
            request.inputs,
            self.id,
            min(self.timeout_s, request.timeout_s),
            request.outputs,
            request.priority or priority_in(self.metadata),
            request.version or version,
            request.key or text_in(self.metadata, KEY),
            request.shared,
            self.trace,
        )

    def answered(self, answer: InferResponse | ServingError) -> None:
        """Take the engine's answer: note the version that gave it, and what took it so long."""
        if self._over:
            return
        if isinstance(answer, ServingError):
            self._end(answer)
            return
        self.timing = answer.timing
        if answer.version != self.named.version:
            self.named = Named(answer.model, answer.version)
        try:
            body = self._codec.body(answer, self)
        except ServingError as error:
            self._end(error)
        except Exception:
            logger.exception("request %s: unexpected error", self.id)
            self._end(self._internal())
        else:
            self._close()
            duration_s = time.perf_counter() - self.began_s
            self.told(body)  # first: who waits need not wait for the record
            self._record(None, duration_s, len(body))

    def told(self, outcome: bytes | ServingError) -> None:
        """Send the answer, or why there is none."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Drop the request, if it is not answered: nobody waits for it any more."""
        if self._over:
            return
        failure, asked = self._why_cancelled(), self._asked
        if asked is not None:
            failure.version = asked.version
            asked.cancel()
        self.refused(failure)

    def refused(self, failure: ServingError) -> None:
        """Report that the call ends so, which whoever made it sees to."""
        self._close()
        self._record(failure, time.perf_counter() - self.began_s)

    def _check(self, body: bytes) -> None:
        limit_bytes = self._intake.max_message_bytes
        if len(body) > limit_bytes:
            raise too_large(len(body), limit_bytes)
        self.timeout_s = self.arrival.left_s
        if self.timeout_s <= 0:
            raise ServingError(Code.DEADLINE_EXCEEDED, "the deadline passed before the call began")

    def _close(self) -> None:
        self._over = True
        # It knows the call, too: in a cycle both would hold the request until the collector runs.
        self._asked = None

    def _end(self, failure: ServingError) -> None:
        # Its frames hold the message; in a cycle with it they would hold it until the collector
        # runs.
        failure = failure.with_traceback(None)
        self.refused(failure)
        self.told(failure)

    def _internal(self) -> ServingError:
        return ServingError(Code.INTERNAL, f"internal error; request id {self.id}")

    def _why_cancelled(self) -> ServingError:
        """Tell a client that gave up from one whose deadline made its library cancel the call."""
        # `grpc-timeout` has three digits, rounded up: our copy of the deadline is up to 1 % late.
        late_s = 0.001 + (self.timeout_s / 100 if self.timeout_s < math.inf else 0)
        if self.arrival.left_s <= late_s:
            return ServingError(Code.DEADLINE_EXCEEDED, "the client's deadline passed")
        return ServingError(Code.CANCELLED, "the client left")

    def _record(self, failure: ServingError | None, duration_s: float, bytes_out: int = 0) -> None:
        if failure is not None and failure.version:
            self.named = Named(self.named.model, failure.version)
        self._intake.engine.observer.answered(
            Answered(
                transport="grpc",
                model=self.named.model,
                version=self.named.version,
                rows=self.rows,
                code=failure.code if failure else None,
                duration_s=duration_s,
                request_id=self.id,
                detail=failure.detail if failure else "",
                trace_id=self.trace.trace_id if self.trace else own_trace(self.metadata),
                trace=self.trace,
                operation=self.arrival.path[1:],
                protocol="2",
                bytes_in=self._bytes_in,
                bytes_out=bytes_out,
                timing=self.timing,
            )
        )


def too_large(size_bytes: int, limit_bytes: int) -> ServingError:
    """Return the refusal of a message."""
    return ServingError(
        Code.PAYLOAD_TOO_LARGE,
        f"message has {size_bytes} bytes, the limit is {limit_bytes} "
        "(option max_message_bytes of the grpc transport)",
    )
