"""What compiling is told of classes (decision 0046)."""

from typing import TypeVar

T = TypeVar("T")


def ordinary(one: type[T]) -> type[T]:
    """Leave ``one``, where it is compiled, a class like any other: mypyc does so if decorated.

    For one whose instances were another's before, or that overrides a class attribute. No
    interpreted class may derive from it all the same, and a compiled one that does has to be
    ordinary too.
    """
    return one
