"""A model on a Ray cluster behind the Backend protocol."""

from backends.ray_pool.options import ACTOR, RayPoolOptions
from backends.ray_pool.placed import Placed, PlacedBackend


class RayPoolBackend(PlacedBackend):
    """Serve one model with replicas, or with shards of its tables, on a Ray cluster."""

    Options = RayPoolOptions

    def _load(self) -> Placed:
        # Ray takes half a second to import: the command line reads the options without it.
        if self._options.shard and self._options.dense == ACTOR:
            from backends.ray_pool.sharded.actor import load as load_actor  # noqa: PLC0415

            return load_actor(self._options)
        if self._options.shard:
            from backends.ray_pool.sharded.load import load_sharded  # noqa: PLC0415

            return load_sharded(self._options)
        from backends.ray_pool.replicated import load  # noqa: PLC0415

        return load(self._options)
