"""An inference request over HTTP/1.1 that has arrived whole: answered in plain steps.

    begin: head, body, decoding, engine --answered, or left--> encoding, write, record

A task is made only to wait: for a client that does not read, for a large answer to be packed, for
the rest of what is refused early.
"""

from http import HTTPStatus

from starlette.types import Message

from scheduler.asking import Asked
from scheduler.engine import Engine
from scheduler.errors import ServingError
from scheduler.types import InferResponse
from transports.http.asked import AskedAtOnce
from transports.http.body import Body
from transports.http.call import Call, Headers, Target
from transports.http.coding import pack
from transports.http.disconnect import reason
from transports.http.incoming import Incoming
from transports.http.problem import HttpError


class DirectCall(Call):
    """A request whose body ``incoming`` has: that tells it of its client's end, the engine answers.

    What nobody foresaw ends here, whoever calls: this request is answered with a 500, and its
    connection closes behind that.
    """

    def __init__(
        self,
        engine: Engine,
        target: Target,
        body: Body,
        asked: AskedAtOnce,
        incoming: Incoming,
    ) -> None:
        super().__init__(engine, target, body, asked)
        self._exchange = asked
        self._incoming = incoming
        self._under: Asked | None = None
        self._over = False

    @property
    def gone(self) -> bool:
        """Whether nobody waits any more."""
        return self._over

    def begin(self) -> None:
        """Have it answered, perhaps at once."""
        try:
            self._begin()
        except Exception as fault:  # noqa: BLE001  # it is logged where it is answered
            self.failed(fault, self._id)

    def answered(self, answer: InferResponse | ServingError) -> None:
        """Take the engine's answer."""
        if self._over:
            return
        try:
            if isinstance(answer, ServingError):
                self._refuse(answer)
            else:
                self._give(answer)
        except Exception as fault:  # noqa: BLE001  # it is logged where it is answered
            self.failed(fault, self._id)

    def failed(self, error: Exception, request_id: str) -> None:
        """End on a bug of ours."""
        del request_id  # the log has the cause, and the answer what it always says
        self._close()
        try:
            self.end()
        finally:
            self._exchange.failed(error)

    def _begin(self) -> None:
        self.begin_span()
        try:
            head, form = self.opened()
            body = self._body.whole(head.body_bytes, form.json_bytes)
            assert body is not None
            under = self._engine.ask(self.decoded(body, head, form), self)
        except (ServingError, HttpError) as error:
            self._refuse(error)
        else:
            if not self._over:
                self._under = under
                self._incoming.watch(self._left)

    def _left(self, message: Message) -> None:
        """End it: its client has left, or the server will wait no longer."""
        under = self._under
        if self._over or under is None:
            return
        try:
            error = reason(message, "the client left before its answer")
            if isinstance(error, ServingError):
                error.version = under.version
            self._close()
            under.cancel()
            self._answer_refusal(error)
        except Exception as fault:  # noqa: BLE001  # it is logged where it is answered
            self.failed(fault, self._id)

    def _give(self, response: InferResponse) -> None:
        self._close()
        try:
            headers, body = self.encoded(response)
        except (ServingError, HttpError) as error:
            self._answer_refusal(error)
            return
        coding = self.coding_of(headers, body)
        if coding:
            self._exchange.go_on(self._pack(headers, body, coding))
            return
        self.granted(headers, body)
        self._answer(HTTPStatus.OK, headers, body)

    def _refuse(self, error: ServingError | HttpError) -> None:
        if not self._over:
            self._close()
            self._answer_refusal(error)

    def _answer_refusal(self, error: ServingError | HttpError) -> None:
        # Its frames hold the request; what holds the error would hold that, too.
        status, headers, body, swallow = self.refused(error.with_traceback(None))
        if swallow:
            self._exchange.go_on(self._answer_early(status, headers, body))
        else:
            self._answer(status, headers, body)

    def _answer(self, status: int, headers: Headers, body: bytes) -> None:
        if self._exchange.answer_now(status, headers, body):
            self.end()  # after it has left: who waits need not wait for the record
        else:
            self._exchange.go_on(self._answer_later(status, headers, body))

    async def _answer_later(self, status: int, headers: Headers, body: bytes) -> None:
        try:
            await self._exchange.answer(status, headers, body)
        finally:
            self.end()

    async def _answer_early(self, status: int, headers: Headers, body: bytes) -> None:
        try:
            await self._exchange.answer_early(status, headers, body, self._body.drain)
        finally:
            self.end()

    async def _pack(self, headers: Headers, body: bytes, coding: str) -> None:
        try:
            content = await pack(body, coding)
            self.granted(headers, content)
            await self._exchange.answer(HTTPStatus.OK, headers, content)
        finally:
            self.end()

    def _close(self) -> None:
        """Listen to nobody any more; they know the call, and no cycle is left."""
        self._over = True
        self._under = None
        self._incoming.watch(None)
