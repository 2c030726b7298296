"""schemathesis asks for everything the OpenAPI document describes, and compares the answers.

It has a virtualenv of its own (``make test-slow`` makes it): it needs urllib3, which niquests
replaces.
"""

import asyncio
import sys
from pathlib import Path

import pytest

from tests.abuse.victim import others_are_served, victim

SCHEMATHESIS = Path(sys.prefix) / "schemathesis/bin/schemathesis"
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
# A deadline of a millisecond, which requests may have, passes; loading models is not allowed.
CONFIGURATION = """
[checks]
not_a_server_error.expected-statuses = ["2xx", "4xx", 501, 504]
"""
# Not the examples: of protobuf there is none in text, and the others are tested elsewhere.
PHASES = "coverage,fuzzing,stateful"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(not SCHEMATHESIS.exists(), reason="schemathesis is not installed")
async def test_every_answer_is_as_the_openapi_document_says(tmp_path: Path) -> None:
    (tmp_path / "schemathesis.toml").write_text(CONFIGURATION)
    with victim(tmp_path) as process:
        options = [f"--checks={','.join(CHECKS)}", f"--phases={PHASES}", "--seed=1"]
        limits = ["--max-examples=10", "--continue-on-failure", "--no-color"]
        address = f"{process.urls['http']}/openapi.json"
        done = await asyncio.create_subprocess_exec(
            SCHEMATHESIS, "run", address, *options, *limits,
            cwd=tmp_path, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        said, _ = await done.communicate()
        assert done.returncode == 0, said.decode()[-6000:]
        assert "Traceback" not in process.log
        await others_are_served(process)
