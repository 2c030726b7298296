"""A model served by whole replicas: batches go out packed, and come back as scores."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import ray

from backends.ray_pool.cluster import Room, join, placer
from backends.ray_pool.fanout import Fanout
from backends.ray_pool.inner import make_inner
from backends.ray_pool.options import RayPoolOptions
from backends.ray_pool.packing import Packed, pack
from backends.ray_pool.pool import Pool, Times
from backends.ray_pool.refused import Refused
from backends.ray_pool.replica import Described, Makes, Replica
from backends.ray_pool.scaling import Bounds
from scheduler.backend import Checked, Compute, Updatable
from scheduler.errors import LoadError
from scheduler.types import Array, Batch, InferRequest, ModelSpec

# What is larger Ray puts into shared memory: once, while the batch waits, is better than each time
# that it is sent. Ray's max_direct_call_object_size.
_INLINE_BYTES = 100_000


class Replicated:
    """Answer batches with ``pool``, whose members have loaded what is ``described``."""

    def __init__(self, pool: Pool, described: Described, lanes: int, tables: Updatable) -> None:
        self._pool = pool
        self.tables = tables
        self._check = described.check
        self.spec: ModelSpec = described.spec
        self.lanes = lanes

    def check(self, request: InferRequest) -> Checked | None:
        """Check as the replicas would, if that can be done here. Raises ServingError."""
        return self._check(request) if self._check is not None else None

    def lanes_for(self, waiting_rows: int) -> int:
        """Return how many batches may be under way now."""
        return self._pool.lanes_for(waiting_rows)

    def prepare(self, batch: Batch) -> Compute:
        """Pack ``batch``; return what sends it."""
        packed = pack(batch)
        return partial(
            self._compute, ray.put(packed) if packed.size_bytes > _INLINE_BYTES else packed
        )

    def _compute(self, packed: "Packed | ray.ObjectRef") -> Mapping[str, Array]:
        checked = self._check is not None
        found = self._pool.call(lambda handle: handle.run.remote(packed, checked))
        if isinstance(found, Refused):
            raise found.error()
        outputs: Mapping[str, Array] = found
        return outputs

    def processes(self) -> dict[int, str]:
        """Return the process of each replica that is up, with its node."""
        return self._pool.processes()

    def close(self) -> None:
        """End the replicas."""
        self._pool.close()


def load(options: RayPoolOptions) -> Replicated:
    """Place the replicas and wait until they have loaded. Raises LoadError."""
    inner = make_inner(options)
    # As the replicas are not asked yet, and all have the same: half of what most backends take.
    most_rows = int(getattr(inner.options, "max_batch_rows", 2048))
    lanes = getattr(inner.options, "lanes", 0) or max(1, int(options.cpus))
    return place(options, inner, lanes, most_rows)


def place(options: RayPoolOptions, made: Makes, lanes: int, most_rows: int) -> Replicated:
    """Place replicas of what is ``made``, as ``load`` does; each has so many lanes."""
    join(options.address)
    new = placer(Replica, Room(options.cpus, options.gpus, threads=lanes + options.ahead + 2))
    pool = Pool(
        f"ray {options.inner}",
        lambda: new(made),
        bounds_of(options, most_rows),
        Times(options.call_timeout_s, options.patience_s, options.load_timeout_s),
        options.ahead,
    )
    pool.place()
    pool.start()
    try:
        described: Described = pool.call(lambda handle: handle.describe.remote())
    except Exception as error:
        pool.close()
        raise LoadError(f"a replica cannot be asked for its model: {error}") from error
    properties = {
        **described.spec.properties,
        "inner": options.inner,
        "replicas": f"{options.min_replicas} to {options.most_replicas}",
    }
    described = replace(described, spec=replace(described.spec, properties=properties))
    tables = Fanout(pool, described.tables, options.patience_s)
    return Replicated(pool, described, options.most_replicas * (lanes + options.ahead), tables)


def bounds_of(options: RayPoolOptions, most_rows: int) -> Bounds:
    """Return how many replicas there may be, when a batch has ``most_rows`` at most."""
    return Bounds(
        options.min_replicas,
        options.most_replicas,
        options.scale_up_rows or max(1, most_rows // 2),
        options.scale_up_s,
        options.scale_down_s,
    )
