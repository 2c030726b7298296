"""What can be set for a model that is computed on a Ray cluster."""

import math
from dataclasses import dataclass, field

from backends.dlrm.ranges import check_choice, check_least

# Values of "shard" and of "plan".
NOTHING, TABLES = "", "tables"
AUTO, TABLE_WISE, ROW_WISE = "auto", "table_wise", "row_wise"
# Values of "plan_by" and of "dense".
SIZE, PLANNER = "size", "planner"
GATEWAY, ACTOR = "gateway", "actor"


@dataclass(frozen=True, slots=True)
class RayPoolOptions:
    """Serve one model with replicas of another backend, each an actor of a Ray cluster.

    With ``shard`` its tables are shared out over actors instead.
    """

    path: str = field(
        default="", metadata={"help": "the model, at the same path on every machine of the cluster"}
    )
    address: str = field(
        default="auto",
        metadata={"help": "HOST:PORT of the cluster's head; auto: the one this machine is part of"},
    )
    inner: str = field(default="native_dlrm", metadata={"help": "backend of each replica"})
    inner_options: tuple[str, ...] = field(
        default=(), metadata={"help": "KEY=VALUE: options of that backend"}
    )
    min_replicas: int = field(default=1, metadata={"help": "replicas there always are"})
    max_replicas: int = field(
        default=0, metadata={"help": "replicas there are at most, by queue depth; 0: min_replicas"}
    )
    cpus: float = field(default=1.0, metadata={"help": "CPUs that each replica or shard takes"})
    gpus: float = field(default=0.0, metadata={"help": "GPUs that each replica takes"})
    ahead: int = field(
        default=1,
        metadata={"help": "batches on their way to each replica besides those that it computes"},
    )
    scale_up_rows: int = field(
        default=0,
        metadata={
            "help": "rows waiting for each replica above which one is added; 0: half a batch"
        },
    )
    scale_up_s: float = field(
        default=1.0, metadata={"help": "seconds that so many wait before one is added"}
    )
    scale_down_s: float = field(
        default=60.0, metadata={"help": "seconds one replica fewer would have done before it goes"}
    )
    call_timeout_s: float = field(
        default=8.0,
        metadata={"help": "seconds after which a replica counts as hung, and is killed"},
    )
    patience_s: float = field(
        default=20.0,
        metadata={
            "help": "seconds in all for a batch to find replicas and be computed; below watchdog_s"
        },
    )
    load_timeout_s: float = field(
        default=120.0, metadata={"help": "seconds for the first replicas to find room and load"}
    )
    shard: str = field(
        default="",
        metadata={"help": "tables: share the tables out over actors (native_dlrm's models)"},
    )
    shards: int = field(default=2, metadata={"help": "parts that the tables are shared out to"})
    plan: str = field(
        default="auto",
        metadata={
            "help": "table_wise, row_wise, or auto: tables whole, unless too large for a part"
        },
    )
    plan_by: str = field(
        default=SIZE, metadata={"help": "what plans: size, or planner: TorchRec's"}
    )
    dense: str = field(
        default=GATEWAY,
        metadata={"help": "where the dense part of a sharded model is: gateway, or an actor"},
    )
    name: str = field(default="", metadata={"help": "model name"})
    version: str = field(default="", metadata={"help": "model version"})

    def __post_init__(self) -> None:
        """Refuse what could not work. Raises ValueError."""
        for name in ("min_replicas", "shards"):
            check_least(self, name, 1)
        for name in ("max_replicas", "ahead", "scale_up_rows"):
            check_least(self, name, 0)
        if 0 < self.max_replicas < self.min_replicas:
            raise ValueError(
                f"max_replicas must be at least min_replicas ({self.min_replicas}),"
                f" got {self.max_replicas}"
            )
        for name in ("cpus", "gpus"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be 0 or more, got {getattr(self, name):g}")
        for name in (
            "scale_up_s", "scale_down_s", "call_timeout_s", "patience_s", "load_timeout_s",
        ):  # fmt: skip
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name):g}")
        check_choice(self, "shard", (NOTHING, TABLES))
        check_choice(self, "plan", (AUTO, TABLE_WISE, ROW_WISE))
        check_choice(self, "plan_by", (SIZE, PLANNER))
        check_choice(self, "dense", (GATEWAY, ACTOR))
        self._check_inner()

    def _check_inner(self) -> None:
        for each in self.inner_options:
            if "=" not in each:
                raise ValueError(f"inner_options must be KEY=VALUE each, got {each!r}")

    @property
    def most_replicas(self) -> int:
        """Replicas there are at most."""
        return self.max_replicas or self.min_replicas
