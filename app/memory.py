"""Python's garbage collector, out of the way of requests."""

import gc

GC_THRESHOLD = 50_000


def settle_memory() -> None:
    """Take the garbage collector off the request path.

    What start-up made stays: it need not be scanned again. The default threshold of 700 would
    collect several times within one JSON request (2,600 lists at 100 rows x 26 ids).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
