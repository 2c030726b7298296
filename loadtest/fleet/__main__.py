"""``python -m loadtest.fleet calibrate | curve | scenarios ...``: the simulation of a fleet."""

import sys
from collections.abc import Sequence

from loadtest.fleet import calibrate, curve, scenarios

_COMMANDS = {"calibrate": calibrate.main, "curve": curve.main, "scenarios": scenarios.main}


def main(argv: Sequence[str]) -> int:
    """Do what ``argv`` names first; 2 if it names nothing."""
    command = _COMMANDS.get(argv[0]) if argv else None
    if command is None:
        print(f"usage: python -m loadtest.fleet {{{','.join(_COMMANDS)}}} ...", file=sys.stderr)
        return 2
    return command(argv[1:])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
