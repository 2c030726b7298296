"""The dense part as an actor, which asks the shards itself: one call has a batch scored."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from backends.ray_pool.options import RayPoolOptions
from backends.ray_pool.placed import PlacedBackend
from backends.ray_pool.replicated import Replicated, place
from backends.ray_pool.sharded.load import dense_lanes, load_sharded, native_options
from backends.ray_pool.sharded.runtime import Sharded
from scheduler.backend import Backend, Checked
from scheduler.types import InferRequest


@dataclass(frozen=True, slots=True)
class Gathering:
    """A sharded model as it travels to the actor that has its dense part."""

    options: RayPoolOptions

    def make(self) -> Backend:
        """Return the backend, not loaded."""
        return ShardedBackend(self.options)


class ShardedBackend(PlacedBackend):
    """The dense part and its shards, as an actor has them."""

    def checker(self) -> Callable[[InferRequest], Checked | None]:
        """Return what checks requests at the gateway."""
        return self._sharded.checker()

    def _load(self) -> Sharded:
        self._sharded = load_sharded(self._options)
        return self._sharded


def load(options: RayPoolOptions) -> Replicated:
    """Place the dense part, as often as there are to be replicas. Raises LoadError.

    Each places shards of its own: they go when it does.
    """
    native = native_options(options)
    theirs = replace(
        options,
        path=native.path,  # the actor is in another folder
        address="auto",
        min_replicas=1,
        max_replicas=0,
        # Who waits for the actor waits longer than the actor does, and hears why.
        patience_s=min(options.patience_s, 1.5 * options.call_timeout_s),
        load_timeout_s=0.9 * options.load_timeout_s,
    )
    ours = replace(options, call_timeout_s=2 * options.call_timeout_s)
    return place(ours, Gathering(theirs), dense_lanes(options), native.max_batch_rows)
