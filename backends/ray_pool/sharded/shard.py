"""What runs in a worker of the cluster: pieces of tables, mapped from the model's file."""

import dataclasses
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from backends.compiled.rows import find_rows_kernel
from backends.dlrm.forward.layout import PLACE, table_layout
from backends.dlrm.forward.model import Dlrm, Table
from backends.dlrm.live import LiveTable, LiveTables
from backends.native_dlrm.check import check_rows
from backends.native_dlrm.options import NativeDlrmOptions
from backends.native_dlrm.source import Source, find_source
from backends.ray_pool.alive import Alive
from backends.ray_pool.cluster import node_of_worker
from backends.ray_pool.sharded.plan import Piece
from backends.ray_pool.sharded.routes import Names
from backends.ray_pool.sharded.split import Floats, PieceIds
from backends.ray_pool.updated import UpdatedActor, UpdatedTables
from scheduler.backend import TableSpec
from scheduler.errors import LoadError


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a model: where the model is, what the gateway found there, which pieces."""

    options: NativeDlrmOptions
    identity: str
    pieces: tuple[Piece, ...]


class Unheld:
    """No lanes: who asks for an update keeps every batch out."""

    def idle(self) -> bool:
        """Return True."""
        return True

    def held(self, timeout_s: float | None) -> AbstractContextManager[None]:
        """Hold nothing."""
        del timeout_s
        return nullcontext()


class Shard(UpdatedActor):
    """Pool bags of some pieces; nothing else of the model's tables is ever read."""

    def __init__(self, part: Part) -> None:
        """Map the pieces; if that fails, be there to say why."""
        self._failure = ""
        try:
            self._open(part)
        except LoadError as error:
            self._failure = str(error)

    def _open(self, part: Part) -> None:
        source = find_source(part.options.path, verify=False)
        if identity_of(source) != part.identity:
            raise LoadError(
                f"{part.options.path} is another model here, {identity_of(source)},"
                f" than at the gateway, {part.identity}"
            )
        self._dlrm = _pieces_of(source.dlrm, part.pieces)
        cache = Path(part.options.cache_dir)
        live = _live(source.dlrm, part.pieces)
        find_faster = partial(find_rows_kernel, cache)
        self._tables = UpdatedTables(source.name, LiveTables(live, Unheld(), find_faster))
        if part.options.verify:
            check_rows(self._dlrm)
        # Numba is for the workers only: 100 MB that the gateway does without.
        from backends.native_dlrm.jit import keep_compiled_in  # noqa: PLC0415

        keep_compiled_in(cache)
        self._layout = table_layout(self._dlrm)
        self._layout[:, PLACE] -= 1  # no dense vector comes before these
        lengths = np.ones((len(part.pieces), 2), np.int32)
        for kind in (np.int32, np.int64):  # compiles, or reads what has been
            self.pool(PieceIds(lengths, np.zeros(lengths.size, kind)))

    def alive(self) -> Alive:
        """Return that it is, or why it cannot serve."""
        if self._failure:
            return Alive(os.getpid(), node_of_worker(), failure=self._failure)
        return Alive(os.getpid(), node_of_worker(), state=self._tables.state)

    def pool_in(self, chunks: int, wanted: PieceIds) -> Floats | list[Floats]:
        """Return what ``pool`` does, its rows in so many ``chunks`` of one result each."""
        sums = self.pool(wanted)
        return sums if chunks == 1 else np.array_split(sums, chunks)

    def pool(self, wanted: PieceIds) -> Floats:
        """Return the sum of each bag, (rows, pieces, dim)."""
        from backends.ray_pool.sharded.lookup import ends_of, pool_rows  # noqa: PLC0415

        pieces, rows = wanted.lengths.shape
        out = np.empty((rows, pieces, self._dlrm.dim), np.float32)
        if pieces:
            ids = wanted.ids.view()
            ids.flags.writeable = False  # as what Ray brings is: one kind of array, one kernel
            pool_rows(self._dlrm.storage, self._layout, ids, ends_of(wanted.lengths), out)
        return out


def identity_of(source: Source) -> str:
    """Return what tells a model from another, if no file was read whole."""
    shapes = [table.data.shape for table in source.dlrm.tables]
    size = source.dlrm.storage.size
    return f"{source.name} {source.version} {source.sha256} of {size} bytes, tables {shapes}"


def _pieces_of(dlrm: Dlrm, pieces: tuple[Piece, ...]) -> Dlrm:
    """Return ``dlrm`` with a table for each piece, whose bags are added up, never averaged."""
    tables = tuple(
        _piece(dlrm.tables[piece.table], slice(piece.first, piece.first + piece.rows))
        for piece in pieces
    )
    # Each vector's place is one more than its position: the dense vector comes before them.
    return dataclasses.replace(dlrm, tables=tables, interacted=tuple(range(len(tables))))


def _live(dlrm: Dlrm, pieces: Sequence[Piece]) -> list[LiveTable]:
    names = Names.of(dlrm.tables)
    found = []
    for piece in names.written(pieces):
        table = dlrm.tables[piece.table]
        spec = TableSpec(names.piece(piece), piece.rows, table.dim, table.kind)
        rows = dlrm.writable(table)[piece.first : piece.first + piece.rows]
        found.append(LiveTable(spec, rows))
    return found


def _piece(table: Table, rows: slice) -> Table:
    return dataclasses.replace(table, data=table.data[rows], mean=False)
