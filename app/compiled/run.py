"""``python -m app.compiled.run MODULE ...``: another module as a program, over compiled ones."""

import runpy
import sys
from collections.abc import Sequence

from app.compiled.use import use_compiled


def main(argv: Sequence[str]) -> None:
    """Run the module that ``argv`` begins with. Raises SystemExit if nothing is compiled."""
    if not use_compiled():
        raise SystemExit("nothing is compiled of these sources: narsil compile")
    sys.argv = [*argv]
    runpy.run_module(argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
