"""``make audit``: ask databases of known weaknesses, through pip-audit, about what is installed.

PyPI's is asked first, then OSV's about what PyPI did not know. Ends with 1 if one of them knows of
a weakness; without an answer about each package it says so, and ends with 0 (--strict: 2).
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SERVICES = ("pypi", "osv")
# pip-audit's word for what this project itself is; nobody has heard of it.
EDITABLE = "editable"
MOST_S = 600


class NoAnswerError(Exception):
    """A database that says nothing at all."""


def audit(given: argparse.Namespace) -> int:
    """Ask as ``given``, say what came of it; return the exit status."""
    answered: dict[str, bool] = {}
    weak: set[str] = set()
    silent = []
    for service in given.service or SERVICES:
        try:
            packages = _asked(given, service)
        except NoAnswerError as error:
            silent.append(f"{service}: {error}")
            continue
        for package in packages:
            answered[package["name"]] = answered.get(package["name"], "vulns" in package)
            weak.update(_told(package))
        if answered and all(answered.values()):
            break
    return _said(answered, weak, silent, 2 if given.strict else 0)


def _asked(given: argparse.Namespace, service: str) -> list[dict[str, Any]]:
    """Return pip-audit's packages, each with ``vulns`` or ``skip_reason``. Raises NoAnswerError."""
    where = [f"--path={given.path}"] if given.path else ["--local", "--skip-editable"]
    command = [given.pip_audit, *where, f"--vulnerability-service={service}", "--format=json"]
    environment = {**os.environ, "PIPAPI_PYTHON_LOCATION": str(given.python)}
    try:
        done = subprocess.run(
            [*command, "--progress-spinner=off"], env=environment,
            capture_output=True, text=True, timeout=MOST_S, check=False,
        )  # fmt: skip
        packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoAnswerError(str(error)) from error
    except (ValueError, KeyError, TypeError) as error:
        *_, last = done.stderr.strip().splitlines() or ["nothing"]
        raise NoAnswerError(last) from error
    return [one for one in packages if EDITABLE not in one.get("skip_reason", "")]


def _told(package: dict[str, Any]) -> list[str]:
    return [
        f"{package['name']} {package['version']}: {one['id']}"
        f" (mended in {', '.join(one['fix_versions']) or 'no version'})"
        for one in package.get("vulns", [])
    ]


def _said(answered: dict[str, bool], weak: set[str], silent: list[str], unknown: int) -> int:
    missing = [name for name, known in answered.items() if not known]
    sys.stdout.writelines(f"KNOWN WEAKNESS: {one}\n" for one in sorted(weak))
    if missing or not answered:
        about = f"{len(missing)} of {len(answered)} packages" if answered else "any package"
        why = "".join(f"\n  {one:.300}" for one in silent)
        sys.stderr.write(
            f"NOT AUDITED: no database of known weaknesses answered about {about}{why}\n"
        )
    elif not weak:
        sys.stdout.write(f"audited: no known weakness in {len(answered)} packages\n")
    return 1 if weak else unknown if missing or not answered else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pip_audit", type=Path, help="the program pip-audit")
    parser.add_argument("python", type=Path, help="the interpreter whose packages are meant")
    parser.add_argument("--path", type=Path, help="only what is installed in this folder")
    parser.add_argument("--service", action="append", choices=SERVICES, help="ask only these")
    parser.add_argument("--strict", action="store_true", help="end with 2 if not all is answered")
    sys.exit(audit(parser.parse_args()))
