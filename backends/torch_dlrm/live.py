"""The tables that a loaded plan reads, to be updated while it serves."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from backends.dlrm.live import Lanes, LiveTable, LiveTables
from backends.dlrm.stored_rows import Quantises
from backends.jagged import JaggedLayout
from backends.torch_dlrm.artifact import Derived
from backends.torch_dlrm.fused import Fused
from backends.torch_dlrm.plan import Plan
from backends.torch_dlrm.serving import Serving
from backends.torch_dlrm.weights import KINDS, Tables, check_bounds
from scheduler.backend import TableRows, TableSpec
from scheduler.errors import Code, LoadError, ServingError

if TYPE_CHECKING:
    from backends.torch_dlrm.device import Module


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


def live_tables(
    plan: Plan, layout: JaggedLayout, lanes: Lanes, find_faster: Callable[[], Quantises | None]
) -> LiveTables | NoTables:
    """Return the tables of ``plan`` by the features' names, or what says why they cannot change."""
    if isinstance(plan.compute, Serving):
        return NoTables("they are on a GPU; only tables on the CPU can change")
    module = plan.compute
    tables = module.tables if isinstance(module, Fused) else _with_torch(module, plan.derived)
    if isinstance(tables, NoTables):
        return tables
    try:
        check_bounds(tables)
    except LoadError as error:
        return NoTables(str(error))
    live = [_live(tables, number, name) for number, name in enumerate(layout.features)]
    return LiveTables(live, lanes, find_faster)


def _live(tables: Tables, number: int, name: str) -> LiveTable:
    rows = int(tables.rows[number])
    spec = TableSpec(name, rows, tables.dim, KINDS[int(tables.types[number])])
    return LiveTable(spec, tables.row_block(number).reshape(rows, -1))


def _with_torch(module: "Module", derived: Derived) -> Tables | NoTables:
    from backends.torch_dlrm.artifact_tables import UnreachableError, tables_of  # noqa: PLC0415
    from backends.torch_dlrm.lean import Lean  # noqa: PLC0415

    if isinstance(module, Lean):
        return module.tables
    try:
        return tables_of(module, derived)
    except UnreachableError as error:
        return NoTables(str(error))
