"""What ``narsil inspect`` found, as text."""

from collections.abc import Iterator
from dataclasses import dataclass

from backends.dlrm.forward.model import Dlrm

_MOST_TABLES = 100


@dataclass(frozen=True, slots=True)
class TableLine:
    """One table as it is shown."""

    feature: str
    rows: int
    dim: int | None
    dtype: str
    pooling: str


@dataclass(frozen=True, slots=True)
class Report:
    """Describe one model; widths are those of each layer's outputs, an empty text is not known.

    ``order`` says whose order the tables have, ``missing`` what keeps it from being served,
    ``models`` what a repository holds, ``next_commands`` how to go on.
    """

    kind: str
    tables: tuple[TableLine, ...] = ()
    order: str = ""
    dense: str = ""
    over: str = ""
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    next_commands: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """Yield the lines to print."""
        yield f"kind      {self.kind}"
        if self.tables:
            yield from self._table_lines()
        said = {
            "model": self.models,
            "dense": filter(None, [self.dense]),
            "over": filter(None, [self.over]),
            "note": self.notes,
            "missing": self.missing,
            "next": self.next_commands,
        }
        for label, values in said.items():
            for value in values:
                yield f"{label:<10}{value}"

    def _table_lines(self) -> Iterator[str]:
        yield f"tables    {len(self.tables)}, {self.order}"
        width = max(len(table.feature) for table in self.tables[:_MOST_TABLES])
        for table in self.tables[:_MOST_TABLES]:
            size = f"{table.rows} x {table.dim or '?'}"
            line = f"  {table.feature:<{width}}  {size:>14}  {table.dtype}  {table.pooling}"
            yield line.rstrip()
        if len(self.tables) > _MOST_TABLES:
            yield f"  ... and {len(self.tables) - _MOST_TABLES} more"


def of_dlrm(kind: str, dlrm: Dlrm, next_commands: tuple[str, ...]) -> Report:
    """Return the report of a model that was recognised whole."""
    tables = tuple(
        TableLine(
            table.feature, len(table.data), table.dim, table.kind, "mean" if table.mean else "sum"
        )
        for table in dlrm.tables
    )
    return Report(
        kind,
        tables,
        "in wire order",
        widths([layer.weight.shape for layer in dlrm.dense]),
        widths([layer.weight.shape for layer in dlrm.over]),
        next_commands=next_commands,
    )


def widths(shapes: "list[tuple[int, ...]]") -> str:
    """Return a chain of (outputs, inputs) as ``inputs -> outputs -> ...``."""
    return " -> ".join(map(str, [shapes[0][1], *(shape[0] for shape in shapes)]))
