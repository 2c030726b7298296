"""Dataclasses made for every request: frozen for the type checker, not while running."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as often_made
else:
    from dataclasses import dataclass

    def often_made(*, frozen: bool, **options: bool):  # the type checker sees the other one
        """Make a dataclass that only the type checker keeps ``frozen``.

        Freezing it for real costs 0.3 us a field, each time that one is made.
        """
        assert frozen
        return dataclass(**options)


__all__ = ["often_made"]
