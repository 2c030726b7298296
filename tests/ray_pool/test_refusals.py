"""What cannot work is refused at the start, by name."""

import socket
from pathlib import Path

import numpy as np
import pytest

from backends.ray_pool.backend import RayPoolBackend
from backends.ray_pool.inner import make_inner
from backends.ray_pool.options import RayPoolOptions
from backends.ray_pool.packing import pack, unpack
from loadtest.lab.ray_cluster import RayCluster
from scheduler.errors import Code, LoadError, ServingError
from scheduler.types import Batch, InferRequest
from tests.fixtures.requests import random_request
from tests.ray_pool.conftest import Serve


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"min_replicas": 0}, "min_replicas must be at least 1, got 0"),
        ({"min_replicas": 3, "max_replicas": 2}, "at least min_replicas .3., got 2"),
        ({"cpus": -1.0}, "cpus must be 0 or more, got -1"),
        ({"patience_s": 0.0}, "patience_s must be above 0, got 0"),
        ({"shard": "rows"}, "shard must be one of , tables, got 'rows'"),
        ({"plan_by": "luck"}, "plan_by must be one of size, planner, got 'luck'"),
        ({"dense": "anywhere"}, "dense must be one of gateway, actor, got 'anywhere'"),
        ({"inner_options": ("lanes",)}, "KEY=VALUE each, got 'lanes'"),
    ],
)
def test_options_that_could_not_work_are_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RayPoolOptions(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"inner": "nobody"}, "inner: no backend 'nobody'; installed: .*native_dlrm"),
        ({"inner": "ray"}, "inner: 'ray' is no backend that a replica can be"),
        ({"inner_options": ("width=3",)}, "native_dlrm has no 'width'; known: .*max_batch_rows"),
        ({"inner_options": ("lanes=two",)}, "lanes must be int, got 'two'"),
        ({"inner_options": ("verify=perhaps",)}, "verify must be bool, got 'perhaps'"),
        ({"inner_options": ("lanes=-1",)}, "lanes must be at least 0, got -1"),
    ],
)
def test_an_inner_backend_that_cannot_be_made_is_refused(
    options: dict[str, object], said: str
) -> None:
    with pytest.raises(LoadError, match=said):
        make_inner(RayPoolOptions(**options))  # type: ignore[arg-type]


def test_inner_options_have_the_types_of_the_backend_and_lanes_as_there_are_cpus() -> None:
    texts = ("verify=false", "ids=a=hash;b=clamp", "max_batch_rows=7")
    inner = make_inner(RayPoolOptions(path="models/mine", cpus=3.0, inner_options=texts)).options
    assert (inner.verify, inner.ids, inner.max_batch_rows) == (False, ("a=hash", "b=clamp"), 7)
    assert inner.lanes == 3
    assert inner.path == str(Path("models/mine").absolute())


@pytest.mark.parametrize("address", ["localhost", "ray://127.0.0.1:1", "127.0.0.1:"])
def test_an_address_of_another_form_is_refused(address: str) -> None:
    pytest.importorskip("ray", reason="needs this project's extra 'ray'")
    backend = RayPoolBackend(RayPoolOptions(address=address, inner="fake"))
    with pytest.raises(LoadError, match=f"HOST:PORT of the cluster's head, got {address}"):
        backend.load()


def test_an_address_where_nothing_listens_is_refused_at_once() -> None:
    pytest.importorskip("ray", reason="needs this project's extra 'ray'")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    backend = RayPoolBackend(RayPoolOptions(address=f"127.0.0.1:{port}", inner="fake"))
    with pytest.raises(LoadError, match=r"no Ray cluster at --address 127.0.0.1.*ray start --head"):
        backend.load()


def test_a_cluster_that_ray_remembers_and_is_gone_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray = pytest.importorskip("ray", reason="needs this project's extra 'ray'")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        gone = f"127.0.0.1:{taken.getsockname()[1]}"
    monkeypatch.setenv("RAY_ADDRESS", gone)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # other tests share this process
    backend = RayPoolBackend(RayPoolOptions(inner="fake"))
    with pytest.raises(LoadError, match=r"auto, which is [0-9.]+:\d+: .*ray start --head"):
        backend.load()


def test_a_packed_batch_is_unpacked_as_it_was() -> None:
    shared = {"float_features": (0, 1)}
    requests = tuple(
        InferRequest(
            "", rows,
            {"a": np.arange(rows * 2, dtype=np.float32).reshape(rows, 2), "b": np.arange(extra)},
            shared=shared if rows == 2 else None,
        )
        for rows, extra in ((1, 0), (2, 5), (3, 1))
    )  # fmt: skip
    found = unpack(pack(Batch(requests)))
    assert [request.rows for request in found] == [1, 2, 3]
    assert [request.shared for request in found] == [None, shared, None]
    for before, after in zip(requests, found, strict=True):
        for name, array in before.inputs.items():
            assert after.inputs[name].dtype == array.dtype
            assert np.array_equal(after.inputs[name], array)


@pytest.mark.slow
async def test_a_model_that_no_replica_can_load_says_why(serve: Serve) -> None:
    with pytest.raises(LoadError, match=r"native_dlrm.*nowhere does not exist"):
        async with serve(path="/nowhere", inner="native_dlrm"):
            pass


@pytest.mark.slow
async def test_replicas_without_room_are_refused_with_what_is_left(serve: Serve) -> None:
    with pytest.raises(LoadError, match=r"0 of 1 .*load_timeout_s.*[0-9] CPUs and 0 GPUs"):
        async with serve(cpus=64.0, load_timeout_s=1.0):
            pass


@pytest.mark.slow
async def test_a_bad_id_is_refused_by_the_gateway_itself(serve: Serve, cluster: RayCluster) -> None:
    async with serve() as (engine, _):
        request = random_request(engine.spec(""), 2, seed=1)
        request.inputs["id_list_features.values"][:] = -1
        with pytest.raises(ServingError, match="has id -1") as caught:
            await engine.infer(request)
        assert caught.value.code is Code.INVALID_REQUEST
