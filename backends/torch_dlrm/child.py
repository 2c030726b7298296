"""``python -m backends.torch_dlrm.child MODEL``: answer probes, and end when stdin does.

Stdin ends when whoever asked is gone, however that came about.
"""

import os
import sys
import threading

_STDIN = 0
_ABANDONED = 4


def _end_with_stdin() -> None:
    while os.read(_STDIN, 1):
        pass
    # Not sys.exit: the main thread may be inside PyTorch's loader.
    os._exit(_ABANDONED)


if __name__ == "__main__":
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    # PyTorch takes seconds to import, in which the end must be noticed too.
    from backends.torch_dlrm.ask import main

    sys.exit(main(sys.argv[1:]))
