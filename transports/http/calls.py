"""All inference requests over HTTP: each in plain steps if it can be, else awaited in a task."""

from http import HTTPStatus

from starlette.types import Receive

from scheduler.engine import Engine
from scheduler.errors import ServingError
from transports.http.asked import Asked, AskedAtOnce
from transports.http.body import Body
from transports.http.call import Call, Headers, Target
from transports.http.coding import pack
from transports.http.direct import DirectCall
from transports.http.disconnect import unless_client_leaves
from transports.http.incoming import Incoming
from transports.http.intake import Intake
from transports.http.problem import HttpError


class Calls:
    """Answers every inference request; what they share is ``intake``."""

    def __init__(self, engine: Engine, intake: Intake) -> None:
        self._engine = engine
        self._intake = intake

    def begin(self, target: Target, asked: AskedAtOnce, incoming: Incoming) -> bool:
        """Have a request answered without a task; False if its body has to be waited for."""
        if not incoming.ready or self._intake.closed or b"content-encoding" in asked.headers:
            return False
        body = Body(incoming, self._intake)
        DirectCall(self._engine, target, body, asked, incoming).begin()
        return True

    async def answer(self, target: Target, asked: Asked, receive: Receive) -> None:
        """Answer one request, whose body ``receive`` has, and tell the observer."""
        call = AwaitedCall(self._engine, target, Body(receive, self._intake), asked, receive)
        call.begin_span()
        try:
            await call.answer()
        finally:
            call.end()


class AwaitedCall(Call):
    """A request that a task answers."""

    def __init__(
        self, engine: Engine, target: Target, body: Body, asked: Asked, receive: Receive
    ) -> None:
        super().__init__(engine, target, body, asked)
        self._receive = receive

    async def answer(self) -> None:
        """Send scores, or the problem that kept us from having any."""
        try:
            headers, body = await self._scores()
        except (ServingError, HttpError) as error:
            await self._refuse(error)
        else:
            self.granted(headers, body)
            await self._asked.answer(HTTPStatus.OK, headers, body)

    async def _scores(self) -> tuple[Headers, bytes]:
        head, form = self.opened()
        content = await self._body.read(head.body_bytes, form.json_bytes, head.coding)
        request = self.decoded(content, head, form)
        response = await unless_client_leaves(self._engine.infer(request), self._receive)
        headers, body = self.encoded(response)
        coding = self.coding_of(headers, body)
        return headers, await pack(body, coding) if coding else body

    async def _refuse(self, error: ServingError | HttpError) -> None:
        status, headers, body, swallow = self.refused(error)
        if swallow:
            await self._asked.answer_early(status, headers, body, self._body.drain)
        else:
            await self._asked.answer(status, headers, body)
