"""The ``narsil`` command: choose between compiled and interpreted modules, then run it.

Nothing that may be compiled is imported before that is chosen.
"""

import os
import sys
from collections.abc import Sequence

from app.compiled.use import use_compiled
from app.config import compiled_wanted
from app.settings import ConfigError

# What a shell says of a program that SIGPIPE ended.
_READER_GONE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code (2: the command line or configuration is wrong)."""
    try:
        use_compiled(wanted=compiled_wanted())
    except ConfigError as error:
        print(f"narsil: {error}", file=sys.stderr)
        return 2
    from app.commands import main as run  # noqa: PLC0415  # the choice is made by now

    try:
        code = run(argv)
        sys.stdout.flush()
    except BrokenPipeError:
        # ``narsil ... | head``. Python flushes once more as it ends, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _READER_GONE
    return code
