"""The tables that a loaded plan reads, to be updated while it serves."""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import torch

from backends.dlrm.live import Lanes, LiveTable, LiveTables
from backends.dlrm.stored_rows import Quantises
from backends.jagged import JaggedLayout
from backends.torch_dlrm.device import Serving
from backends.torch_dlrm.fused import Fused
from backends.torch_dlrm.lean import Lean
from backends.torch_dlrm.plan import Plan
from backends.torch_dlrm.weights import BITS, KINDS, Tables, check_bounds
from scheduler.backend import TableRows, TableSpec
from scheduler.errors import Code, LoadError, ServingError

_STORE = "weights_host"


class NoTables:
    """In the place of tables that cannot be updated: says why."""

    def __init__(self, why: str) -> None:
        self._why = why

    def update_tables(self) -> NoReturn:
        """Raise ServingError (UNSUPPORTED)."""
        raise ServingError(Code.UNSUPPORTED, f"its tables cannot be updated: {self._why}")

    def prepare_update(self, tables: Sequence[TableRows]) -> Callable[[], None]:
        """Raise ServingError (UNSUPPORTED)."""
        del tables
        return self.update_tables()

    def roll_back(self) -> int:
        """Raise ServingError (UNSUPPORTED)."""
        return self.update_tables()


class _UnreachableError(Exception):
    """Say why the rows that a module reads are not to be had."""


def live_tables(
    plan: Plan, layout: JaggedLayout, lanes: Lanes, find_faster: Callable[[], Quantises | None]
) -> LiveTables | NoTables:
    """Return the tables of ``plan`` by the features' names, or what says why they cannot change."""
    try:
        if isinstance(plan.compute, Fused | Lean):
            tables = plan.compute.tables
        else:
            tables = _of_artifact(plan)
        check_bounds(tables)
    except (_UnreachableError, LoadError) as error:
        return NoTables(str(error))
    live = [_live(tables, number, name) for number, name in enumerate(layout.features)]
    return LiveTables(live, lanes, find_faster)


def _live(tables: Tables, number: int, name: str) -> LiveTable:
    rows = int(tables.rows[number])
    spec = TableSpec(name, rows, tables.dim, KINDS[int(tables.types[number])])
    return LiveTable(spec, tables.row_block(number).reshape(rows, -1))


def _of_artifact(plan: Plan) -> Tables:
    """Return the tables of the one lookup of a TorchScript module on the CPU, as it reads them."""
    if isinstance(plan.compute, Serving):
        raise _UnreachableError("they are on a GPU; only tables on the CPU can change")
    if not isinstance(plan.compute, torch.jit.ScriptModule):
        raise _UnreachableError("a torch.export program is served as it came (plan artifact)")
    if not plan.derived.table_rows:
        raise _UnreachableError("which feature has which table is not known (plan artifact)")
    found = [one for one in plan.compute.modules() if hasattr(one, _STORE)]
    if len(found) != 1:
        raise _UnreachableError(f"the model has {len(found)} lookups, not one (plan artifact)")
    lookup: Any = found[0]
    store = getattr(lookup, _STORE)
    if store.device.type != "cpu" or not store.numel():
        raise _UnreachableError("they are not in host memory; only tables on the CPU can change")
    if any(buffer.numel() for name, buffer in lookup.named_buffers() if _remaps(name)):
        raise _UnreachableError("they are pruned: ids are remapped before the lookup")
    widths = np.unique(np.diff(lookup.D_offsets.numpy()))
    types = lookup.weights_tys.numpy()
    if len(widths) != 1 or not set(types.tolist()) <= BITS.keys():
        raise _UnreachableError("they differ in width, or are of a type that is not known")
    return Tables(
        block=store.numpy(),
        starts=lookup.weights_offsets.numpy(),
        types=types,
        rows=lookup.rows_per_table.numpy(),
        dim=int(widths[0]),
        largest=(),
        pooling=0,
        row_alignment=max(1, int(lookup.row_alignment)),
    )


def _remaps(name: str) -> bool:
    return name.startswith("index_remapping") and "offsets" not in name
