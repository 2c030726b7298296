"""Keep the libraries' own warnings out of the user's sight while exporting."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Silence what PyTorch and TorchRec say about themselves: deprecations, tracing, planning."""
    # Not by logger: PyTorch sets the levels of its own anew whenever it is imported.
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
