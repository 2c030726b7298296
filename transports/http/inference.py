"""What is inference, by its path, and who answers it."""

from starlette.types import Receive

from scheduler.engine import Engine
from transports.codecs.oip_shared import SharedMemory
from transports.http import oip, predict
from transports.http.asked import Asked, AskedAtOnce
from transports.http.call import Target
from transports.http.calls import Calls
from transports.http.incoming import Incoming
from transports.http.intake import Intake


class Inference:
    """The inference paths of one engine; ``intake`` is what their bodies share."""

    def __init__(self, engine: Engine, intake: Intake) -> None:
        self._engine = engine
        self._calls = Calls(engine, intake)
        self._max_bytes = intake.limits.max_request_bytes

    def target(self, path: str) -> Target | None:
        """Return what ``path`` asks for; None for a page."""
        target = predict.target_in(path)
        if target is not None or not path.endswith(oip.INFER):
            return target
        return oip.target_in(path, SharedMemory(self._engine.regions, self._max_bytes))

    def begin(self, target: Target, asked: AskedAtOnce, incoming: Incoming) -> bool:
        """Have a request answered without a task; False if its body has to be waited for."""
        return self._calls.begin(target, asked, incoming)

    async def answer(self, target: Target, asked: Asked, receive: Receive) -> None:
        """Answer one request, whose body ``receive`` has."""
        await self._calls.answer(target, asked, receive)
