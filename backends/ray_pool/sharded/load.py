"""Plan a model's shards, place them, and make of them a model to be served."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from backends.cpus import usable_cpus
from backends.dlrm.forward.model import Table, row_bytes
from backends.ids.declared import make_rules
from backends.ids.rules import IdRules
from backends.jagged import JaggedLayout
from backends.native_dlrm.check import check_shapes
from backends.native_dlrm.options import NativeDlrmOptions
from backends.native_dlrm.runtime import layout_of, ones, spec_of
from backends.native_dlrm.source import Source, find_source
from backends.ray_pool.cluster import Room, join, least_memory_bytes, placer
from backends.ray_pool.inner import make_inner
from backends.ray_pool.options import GATEWAY, PLANNER, RayPoolOptions
from backends.ray_pool.pool import Pool, Times
from backends.ray_pool.replicated import bounds_of
from backends.ray_pool.sharded.dense import make_lane
from backends.ray_pool.sharded.join import place
from backends.ray_pool.sharded.plan import Plan, TableSize, make_plan
from backends.ray_pool.sharded.routes import Names
from backends.ray_pool.sharded.runtime import Parts, Sharded
from backends.ray_pool.sharded.shard import Part, Shard, identity_of
from scheduler.backend import TableSpec
from scheduler.errors import LoadError
from scheduler.types import ModelSpec

# Calls of one shard that run at once: it may look up on more CPUs than it asked for.
_THREADS = 4


def native_options(options: RayPoolOptions) -> NativeDlrmOptions:
    """Return what ``options`` say of the model. Raises LoadError for other backends."""
    native = make_inner(options).options
    if not isinstance(native, NativeDlrmOptions):
        raise LoadError(f"--shard {options.shard} is for --inner native_dlrm, not {options.inner}")
    return native


def load_sharded(options: RayPoolOptions) -> Sharded:
    """Plan, place the shards and wait until they have mapped their pieces. Raises LoadError."""
    native = native_options(options)
    join(options.address)
    source = find_source(native.path, verify=native.verify)
    return assemble(options, native, source, partial(_start, options, native))


def dense_lanes(options: RayPoolOptions) -> int:
    """Return how many batches the dense part takes at once."""
    cpus = usable_cpus() if options.dense == GATEWAY else max(1, int(options.cpus))
    return cpus + options.ahead


def assemble(
    options: RayPoolOptions,
    native: NativeDlrmOptions,
    source: Source,
    start: Callable[[Plan], Sequence[Pool]],
) -> Sharded:
    """Return the model of ``source``, whose parts ``start`` starts. Raises LoadError."""
    check_shapes(source.dlrm)
    layout = layout_of(source)
    rules = make_rules(layout, source.ids, native.ids)
    plan = _plan(source, options, native.max_batch_rows)
    placement = place(plan)
    count = dense_lanes(options)
    made = [make_lane(source.dlrm, placement.slots, native) for _ in range(count)]
    properties = {**made[0][1].properties, "lanes": str(count), "shards": _shown(plan)}
    spec = _spec(native, source, (layout, rules), properties)
    means = [number for number, table in enumerate(source.dlrm.tables) if table.mean]
    parts = Parts(
        layout, table_specs(source.dlrm.tables), Names.of(source.dlrm.tables), plan, placement,
        source.dlrm.dim, means, start(plan), options.patience_s,
    )  # fmt: skip
    sharded = Sharded(spec, rules, parts, [lane for lane, _ in made])
    try:
        for rows in {1, spec.max_batch_rows}:
            sharded.prepare(ones(spec, rows))()
    except BaseException:
        sharded.close()
        raise
    return sharded


def table_specs(tables: Sequence[Table]) -> tuple[TableSpec, ...]:
    """Return what updates can change of ``tables``."""
    return tuple(TableSpec(each.feature, len(each.data), each.dim, each.kind) for each in tables)


def _spec(
    native: NativeDlrmOptions,
    source: Source,
    ids: tuple[JaggedLayout, IdRules],
    properties: dict[str, str],
) -> ModelSpec:
    layout, rules = ids
    spec = spec_of(native, source, layout, {**properties, "ids": rules.text})
    return replace(spec, id_policies=rules.policies, vocabularies=rules.vocabularies)


def _plan(source: Source, options: RayPoolOptions, batch_rows: int) -> Plan:
    sizes = [
        TableSize(len(table.data), row_bytes(table.kind, table.dim)) for table in source.dlrm.tables
    ]
    if options.plan_by == PLANNER:
        plan = _planned(sizes, options, batch_rows)
    else:
        plan = make_plan(sizes, options.shards, options.plan)
    # A part without anything would only be asked for nothing.
    return tuple(pieces for pieces in plan if pieces)


def _planned(sizes: Sequence[TableSize], options: RayPoolOptions, batch_rows: int) -> Plan:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchRec's own
            # Seconds, and 400 MB that the gateway does without.
            from backends.ray_pool.sharded.planner import plan_by_torchrec  # noqa: PLC0415
    except ImportError as error:
        raise LoadError(f"--plan-by planner needs torchrec: {error}; see docs/ray.md") from error
    return plan_by_torchrec(sizes, options.shards, options.plan, batch_rows, least_memory_bytes())


def _shown(plan: Plan) -> str:
    return " ".join(f"{len(pieces)}:{sum(each.rows for each in pieces)}" for pieces in plan)


def _start(options: RayPoolOptions, native: NativeDlrmOptions, plan: Plan) -> list[Pool]:
    """Place every part, each with as many replicas as the options say. Raises LoadError."""
    new = placer(Shard, Room(options.cpus, 0.0, _THREADS))
    times = Times(options.call_timeout_s, options.patience_s, options.load_timeout_s)
    bounds = replace(bounds_of(options, native.max_batch_rows), most=options.min_replicas)
    # As a shard sees it, which never reads the file whole.
    identity = identity_of(find_source(native.path, verify=False))
    pools = [
        Pool(f"shard {number}", _placing(new, Part(native, identity, pieces)), bounds, times, 0)
        for number, pieces in enumerate(plan)
    ]
    try:
        for pool in pools:
            pool.place()
        for pool in pools:
            pool.start()
    except BaseException:
        for pool in pools:
            pool.close()
        raise
    return pools


def _placing(new: Callable[[Part], object], part: Part) -> Callable[[], object]:
    return lambda: new(part)
