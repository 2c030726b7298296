"""Print what pyproject.toml depends on, with the extras named, one requirement a line."""

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: Path, extras: list[str]) -> list[str]:
    """Return the requirements of the project and of ``extras``. Raises KeyError for no extra."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    chosen = [project["optional-dependencies"][extra] for extra in extras]
    return sorted({*project["dependencies"], *(one for extra in chosen for one in extra)})


if __name__ == "__main__":
    sys.stdout.writelines(f"{one}\n" for one in requirements(Path("pyproject.toml"), sys.argv[1:]))
