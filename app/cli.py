"""The ``narsil`` command: choose between compiled and interpreted modules, then run it.

Nothing that may be compiled is imported before that is chosen.
"""

import sys
from collections.abc import Sequence

from app.compiled.use import use_compiled
from app.config import compiled_wanted
from app.settings import ConfigError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code (2: the command line or configuration is wrong)."""
    try:
        use_compiled(wanted=compiled_wanted())
    except ConfigError as error:
        print(f"narsil: {error}", file=sys.stderr)
        return 2
    from app.commands import main as run  # noqa: PLC0415  # the choice is made by now

    return run(argv)
