"""Triton's own shared memory utilities; ``tritonclient_shared_memory.py`` says why by a script."""

import asyncio
import json
import os
import secrets
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from scheduler.types import Array, InferRequest
from tests.fixtures.requests import DENSE, LENGTHS, VALUES
from tests.fixtures.shared_memory import shared
from transports.regions import FOLDER, SharedRegions

pytest.importorskip("tritonclient")

SCRIPT = Path(__file__).with_name("tritonclient_shared_memory.py")
ROWS = 4
INPUTS: dict[str, Array] = {
    DENSE: np.repeat(np.arange(ROWS, dtype=np.float32), 3).reshape(ROWS, 3),
    LENGTHS: np.ones((2, ROWS), np.int64),
    VALUES: np.arange(ROWS * 2).reshape(ROWS, 2).T.ravel(),
}


@pytest.mark.skipif(not FOLDER.is_dir(), reason="needs Linux's shared memory objects")
@pytest.mark.parametrize("protocol", ["http", "grpc"])
async def test_tritonclient_uses_shared_memory_as_it_is(tmp_path: Path, protocol: str) -> None:
    prefix = f"narsil-test-{os.getpid()}-{secrets.token_hex(4)}"
    regions = SharedRegions(prefix)
    async with shared(tmp_path, regions=regions) as served:
        address = urlsplit(str(served.http.client.base_url)).netloc
        if protocol == "grpc":
            address = f"127.0.0.1:{served.grpc_port}"
        process = await asyncio.create_subprocess_exec(
            sys.executable, SCRIPT, protocol, address, prefix, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        assert process.returncode == 0
        answers: dict[str, Any] = json.loads(output)
        scores = served.backend.score(InferRequest("fake", ROWS, INPUTS)).reshape(-1, 1).tolist()
        assert answers["written"] == answers["plain"] == scores
        assert answers["answered"]
        assert answers["regions"] == 2
        assert "shared memory region 'in' is not registered" in answers["gone"]
        assert "CUDA shared memory is not served" in answers["cuda"]
        assert regions.status() == []
