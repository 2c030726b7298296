"""Model name -> scheduler; what transports hold."""

from collections.abc import Callable

from scheduler.observer import Observer
from scheduler.types import InferRequest, InferResponse, ModelSpec


class Engine:
    """Serve several models to several transports on one event loop."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer

    @property
    def started(self) -> bool:
        """Every configured model has been loaded once."""
        raise NotImplementedError

    @property
    def ready(self) -> bool:
        """New requests are welcome."""
        raise NotImplementedError

    @property
    def live(self) -> bool:
        """No lane or scheduler has died; a restart would not help."""
        raise NotImplementedError

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` on the loop after readiness may have changed; return its unsubscribe."""
        raise NotImplementedError

    def specs(self) -> tuple[ModelSpec, ...]:
        """Return the models being served."""
        raise NotImplementedError

    def spec(self, model: str) -> ModelSpec:
        """Return one model's spec; an empty name is the only model. Raises ServingError."""
        raise NotImplementedError

    async def infer(self, request: InferRequest) -> InferResponse:
        """Answer ``request``; cancelling the awaiting task cancels it. Raises ServingError."""
        raise NotImplementedError
