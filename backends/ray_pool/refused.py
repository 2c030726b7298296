"""Refusals on their way home."""

from dataclasses import dataclass

from scheduler.errors import Code, Missed, ServingError


@dataclass(frozen=True, slots=True)
class Refused:
    """A ServingError that travels: exceptions with several arguments do not pickle."""

    code: Code
    detail: str
    retry_after_s: float | None = None
    missed: tuple[Missed, ...] = ()

    @staticmethod
    def of(error: ServingError) -> "Refused":
        """Return ``error`` as it travels."""
        return Refused(error.code, error.detail, error.retry_after_s, error.missed)

    def error(self) -> ServingError:
        """Return the error."""
        error = ServingError(self.code, self.detail, self.retry_after_s)
        error.missed = self.missed
        return error
