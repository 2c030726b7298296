"""Memory that is free within the process, given back to the system."""

import ctypes


def give_back() -> None:
    """Have malloc return the pages that it keeps free, in every arena; not all C libraries can.

    After a model: its buffers were many, of many sizes and of several threads, and what is left of
    them would count as ours until the next model of that size.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
