"""``make audit`` fails for a weakness that a database knows of, and says so when none answers.

The real pip-audit asks a database of OSV's kind on loopback.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
AUDIT = ROOT / ".ci" / "audit.py"
PIP_AUDIT = ROOT / ".venv" / "audit" / "bin" / "pip-audit"
SECONDS = 60

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PIP_AUDIT.exists(), reason="make audit installs pip-audit"),
]


class Database(ThreadingHTTPServer):
    """Knows the ``weak`` packages, each by its weakness; None: it is out of order."""

    def __init__(self, weak: dict[str, str] | None) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.weak = weak

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/query"


class Answers(BaseHTTPRequestHandler):
    """As api.osv.dev answers."""

    server: Database

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        name = asked["package"]["name"]
        known = (self.server.weak or {}).get(name)
        body = json.dumps({"vulns": [_weakness(known, name)]} if known else {}).encode()
        self.send_response(503 if self.server.weak is None else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class's name
        """Say nothing."""


def _weakness(number: str, name: str) -> dict[str, Any]:
    fixed = [{"introduced": "0"}, {"fixed": "2.0"}]
    affected = {
        "package": {"name": name, "ecosystem": "PyPI"},
        "ranges": [{"type": "ECOSYSTEM", "events": fixed}],
    }
    return {"id": number, "summary": "Lets anybody in", "affected": [affected]}


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Return a folder in which two packages are installed."""
    for name in ("sturdy", "brittle"):
        about = tmp_path / f"{name}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    return tmp_path


@pytest.fixture
def answering(request: pytest.FixtureRequest) -> Iterator[Database]:
    database = Database(request.param)
    thread = threading.Thread(target=database.serve_forever, daemon=True)
    thread.start()
    yield database
    database.shutdown()
    database.server_close()
    thread.join()


def audited(folder: Path, url: str, *flags: str) -> subprocess.CompletedProcess[str]:
    command: list[str | Path] = [sys.executable, AUDIT, PIP_AUDIT, sys.executable]
    return subprocess.run(
        [*command, "--path", folder, "--service", "osv", *flags],
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "PIP_AUDIT_OSV_URL": url},
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("answering", [{"brittle": "PYSEC-2026-1"}], indirect=True)
def test_a_weakness_that_a_database_knows_of_fails_and_is_named(
    installed: Path, answering: Database
) -> None:
    done = audited(installed, answering.url)
    assert done.returncode == 1, done.stderr
    assert done.stdout == "KNOWN WEAKNESS: brittle 1.0: PYSEC-2026-1 (mended in 2.0)\n"


@pytest.mark.parametrize("answering", [{"other": "PYSEC-2026-1"}], indirect=True)
def test_what_no_database_knows_of_passes(installed: Path, answering: Database) -> None:
    done = audited(installed, answering.url, "--strict")
    assert (done.returncode, done.stdout) == (0, "audited: no known weakness in 2 packages\n")


@pytest.mark.parametrize("answering", [None], indirect=True)
@pytest.mark.parametrize(("flags", "status"), [([], 0), (["--strict"], 2)])
def test_without_an_answer_it_says_so_and_passes_unless_it_is_strict(
    installed: Path, answering: Database, flags: list[str], status: int
) -> None:
    done = audited(installed, answering.url, *flags)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith("NOT AUDITED: no database of known weaknesses answered about any")


def test_without_anybody_at_the_databases_address_it_says_so(installed: Path) -> None:
    gone = Database({})
    gone.server_close()
    done = audited(installed, gone.url)
    assert (done.returncode, done.stdout) == (0, "")
    assert "NOT AUDITED" in done.stderr
