"""All inference calls over gRPC: what they name, how they end, and when no more are taken."""

import asyncio
from collections.abc import Mapping

import grpc

from scheduler.engine import Engine
from scheduler.errors import ServingError
from transports.grpc.call import Call, Codec, Intake
from transports.grpc.metadata import REQUEST_ID, VERSION, text_in
from transports.grpc.methods import Arrival, Replied, Reply
from transports.grpc.outcome import refusal
from transports.named import named


class UnaryCall(Call):
    """The request of a call that has one; ``replied`` is called once with how the call ends."""

    def __init__(self, intake: Intake, codec: Codec, arrival: Arrival, replied: Replied) -> None:
        super().__init__(intake, codec, arrival, arrival.began_s)
        self._replied = replied

    def told(self, outcome: bytes | ServingError) -> None:
        """End the call."""
        if isinstance(outcome, ServingError):
            self._replied(refusal(outcome, self.id))
        else:
            self._replied(Reply(grpc.StatusCode.OK, outcome, "", ((REQUEST_ID, self.id),)))


class AwaitedCall(Call):
    """A request whose outcome a task awaits."""

    def __init__(self, intake: Intake, codec: Codec, arrival: Arrival, began_s: float) -> None:
        super().__init__(intake, codec, arrival, began_s)
        future: asyncio.Future[bytes | ServingError] = asyncio.get_running_loop().create_future()
        self._outcome = future

    def told(self, outcome: bytes | ServingError) -> None:
        """Wake the task."""
        if not self._outcome.done():
            self._outcome.set_result(outcome)

    async def outcome(self, body: bytes) -> bytes | ServingError:
        """Return the answer to the request in ``body``, or why there is none."""
        self.begin(body)
        try:
            return await self._outcome
        except asyncio.CancelledError:
            self.cancel()
            raise


class Calls:
    """Take calls until told to stop, refusing messages over ``max_message_bytes``.

    ``model_keys`` has, by path, the metadata that names the model, if the message does not.
    """

    def __init__(
        self, engine: Engine, max_message_bytes: int, model_keys: Mapping[str, str]
    ) -> None:
        self._engine = engine
        self._model_keys = model_keys
        self._intake = Intake(engine, max_message_bytes)
        self.max_message_bytes = max_message_bytes

    def hold(self) -> None:
        """Take no more requests: new calls wait for ``close``, which refuses them all at once."""
        self._intake.closing = True

    def close(self) -> None:
        """Refuse the calls held and those still to come."""
        self._intake.close()

    def unary(self, codec: Codec, body: bytes, arrival: Arrival, replied: Replied) -> UnaryCall:
        """Answer a call of one request, or refuse it."""
        call = UnaryCall(self._intake, codec, arrival, replied)
        self._name(call)
        call.begin(body)
        return call

    def one_of(self, codec: Codec, arrival: Arrival, began_s: float) -> AwaitedCall:
        """Return a request, that began so, of a stream that arrived."""
        return AwaitedCall(self._intake, codec, arrival, began_s)

    def refused(self, arrival: Arrival, failure: ServingError) -> Reply:
        """Report a call that was turned away before it had a request; return how it ends."""
        call = Call(self._intake, Codec(), arrival, arrival.began_s)
        self._name(call)
        call.refused(failure)
        return refusal(failure, call.id)

    def _name(self, call: Call) -> None:
        model_key = self._model_keys.get(call.arrival.path)
        if model_key is not None:
            model = text_in(call.metadata, model_key)
            call.named = named(self._engine, model, text_in(call.metadata, VERSION))
