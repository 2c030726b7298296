"""A plan by TorchRec's planner, for machines without GPUs. Needs torchrec."""

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.shard_estimators import (
    EmbeddingPerfEstimator,
    EmbeddingStorageEstimator,
)
from torchrec.distributed.planner.stats import NoopEmbeddingStats
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import PlannerError
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from backends.ray_pool.options import AUTO
from backends.ray_pool.sharded.plan import Piece, Plan, TableSize
from scheduler.errors import LoadError


class _Sharder(EmbeddingBagCollectionSharder):  # type: ignore[misc]  # it has no types
    """What our shards can do, on CPUs too; TorchRec's own cut rows on GPUs only."""

    def __init__(self, types: list[str]) -> None:
        super().__init__()
        self._types = types

    def sharding_types(self, compute_device_type: str) -> list[str]:
        """Return the ways of sharing a table out."""
        return self._types


def plan_by_torchrec(
    tables: Sequence[TableSize], parts: int, kind: str, batch_rows: int, part_bytes: int
) -> Plan:
    """Share ``tables`` out to ``parts`` of at most ``part_bytes``, as ``make_plan`` does.

    ``auto`` leaves it to the planner which are cut. Raises LoadError.
    """
    for name in ("torchrec", "MethodLogger-NullHandler"):  # they warn of training
        logging.getLogger(name).setLevel(logging.CRITICAL)
    types = ["table_wise", "row_wise"] if kind == AUTO else [kind]
    planner = _planner(
        Topology(world_size=parts, compute_device="cpu", ddr_cap=part_bytes),
        {name: ParameterConstraints(types) for name in _names(tables)},
        batch_rows,
    )
    try:
        found = planner.plan(_collection(tables), [_Sharder(types)])
    except PlannerError as error:
        first, *_ = str(error).strip().splitlines()
        raise LoadError(f"--plan-by planner: TorchRec finds no plan: {first}") from error
    return _pieces(found.plan[""], tables, parts)


def _planner(
    topology: Topology, constraints: dict[str, ParameterConstraints], batch_rows: int
) -> EmbeddingShardingPlanner:
    # Of inference: for training, tables take their bytes twice.
    estimators = [
        EmbeddingPerfEstimator(topology, constraints, is_inference=True),
        EmbeddingStorageEstimator(topology, constraints, is_inference=True),
    ]
    return EmbeddingShardingPlanner(
        topology=topology,
        batch_size=batch_rows,
        enumerator=EmbeddingEnumerator(topology, batch_rows, constraints, estimators),
        storage_reservation=FixedPercentageStorageReservation(0.0),
        constraints=constraints,
        stats=NoopEmbeddingStats(),
        debug=False,
    )


def _names(tables: Sequence[TableSize]) -> list[str]:
    return [str(number) for number in range(len(tables))]


def _collection(tables: Sequence[TableSize]) -> EmbeddingBagCollection:
    """Return tables of as many bytes, which are nowhere."""
    return EmbeddingBagCollection(
        device=torch.device("meta"),
        tables=[
            EmbeddingBagConfig(
                name=name, feature_names=[name], num_embeddings=table.rows,
                embedding_dim=table.row_bytes, data_type=DataType.INT8,
            )
            for name, table in zip(_names(tables), tables, strict=True)
        ],
    )  # fmt: skip


def _pieces(found: Any, tables: Sequence[TableSize], parts: int) -> Plan:
    plan: list[list[Piece]] = [[] for _ in range(parts)]
    for number, name in enumerate(_names(tables)):
        for shard in found[name].sharding_spec.shards:
            rows = shard.shard_sizes[0]
            if rows:
                plan[shard.placement.rank()].append(Piece(number, shard.shard_offsets[0], rows))
    return tuple(tuple(pieces) for pieces in plan)
