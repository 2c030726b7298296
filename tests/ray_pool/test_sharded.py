"""Tables that are shared out over actors: the scores of the whole model, also when one dies."""

import asyncio
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from backends.native_dlrm.backend import NativeDlrmBackend
from scheduler.errors import Code, LoadError, ServingError
from scheduler.types import Array, Batch
from tests.fixtures.requests import random_request
from tests.ray_pool.conftest import Serve

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

# Sums in another order differ in their last digits, and so do two kernels.
TOLERANCE = 2e-6


def close(ours: Array, theirs: Array) -> bool:
    """Return whether the scores are the same."""
    return bool(np.abs(np.subtract(ours, theirs, dtype=np.float64)).max() <= TOLERANCE)


def sharded(artifact: Path, cache: Path, **options: object) -> dict[str, object]:
    """Return the options of ``artifact`` shared out to two parts."""
    settings = ("max_batch_rows=128", f"cache_dir={cache}")
    return {
        "inner": "native_dlrm", "path": str(artifact), "shard": "tables",
        "inner_options": settings, **options,
    }  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"plan": "table_wise"},
        {"plan": "row_wise"},
        {"dense": "actor"},
        {"plan": "row_wise", "plan_by": "planner"},
    ],
    ids=str,
)
async def test_the_scores_are_those_of_the_whole_model(
    serve: Serve,
    small_artifact: Path,
    kernel_cache: Path,
    native_backend: NativeDlrmBackend,
    options: dict[str, object],
) -> None:
    async with serve(**sharded(small_artifact, kernel_cache, **options)) as (engine, backend):
        spec = engine.spec("")
        requests = [random_request(spec, 1 + seed % 40, seed=seed) for seed in range(30)]
        answers = await asyncio.gather(*map(engine.infer, requests))
        for request, answer in zip(requests, answers, strict=True):
            (whole,) = native_backend.prepare(Batch((request,)))().values()
            assert close(answer.outputs["default"], whole)
        bad = random_request(spec, 2, seed=1)
        bad.inputs["id_list_features.values"][:] = 2**31 - 1
        with pytest.raises(ServingError, match="has id") as caught:
            await engine.infer(bad)
        assert caught.value.code is Code.INVALID_REQUEST
        assert backend.lanes_for(0) == backend.lanes


@pytest.mark.parametrize("dense", ["gateway", "actor"])
async def test_a_killed_shard_or_dense_actor_loses_no_request(
    serve: Serve,
    small_artifact: Path,
    kernel_cache: Path,
    native_backend: NativeDlrmBackend,
    dense: str,
) -> None:
    async with serve(**sharded(small_artifact, kernel_cache, dense=dense)) as (engine, backend):
        request = random_request(engine.spec(""), 7, seed=3)
        (whole,) = native_backend.prepare(Batch((request,)))().values()
        os.kill(min(backend.processes()), signal.SIGKILL)
        answers = await asyncio.gather(*(engine.infer(request) for _ in range(20)))
        for answer in answers:
            assert close(answer.outputs["default"], whole)


async def test_only_models_of_native_dlrm_are_shared_out(serve: Serve) -> None:
    with pytest.raises(LoadError, match="--shard tables is for --inner native_dlrm, not fake"):
        async with serve(shard="tables"):
            pass
