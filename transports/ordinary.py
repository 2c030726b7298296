"""What compiling is told of classes (decision 0046)."""

from typing import TypeVar

T = TypeVar("T")


def ordinary(one: type[T]) -> type[T]:
    """Leave ``one``, where it is compiled, a class like any other: mypyc does so if decorated.

    For those that interpreted classes derive from, or whose instances were another's before, and
    what is compiled and derives from those.
    """
    return one
