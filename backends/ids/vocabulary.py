"""A feature's vocabulary: the texts of one column of an Arrow or Parquet file, row by row."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from scheduler.errors import LoadError

if TYPE_CHECKING:
    import pyarrow

# The id of a text that no vocabulary has: no table has such a row, whatever its size.
UNKNOWN = -(2**63)
_ARROW_MAGIC = b"ARROW1"
_NEEDS = "{}: a vocabulary needs this project's extra 'arrow': pip install -e '.[arrow]'"


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """Turn texts into rows; ``rows`` has the row of each text."""

    rows: dict[str, int]

    def ids_of(self, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return the row of each of ``texts``, UNKNOWN where there is none."""
        find = self.rows.get
        return np.fromiter([find(text, UNKNOWN) for text in texts], np.int64, len(texts))


def read_vocabulary(path: Path, feature: str, table_rows: int) -> Vocabulary:
    """Read the vocabulary of ``feature``: entry n of the file's one text column is row n.

    Raises LoadError naming the file and what is wrong.
    """
    texts = _texts(path, feature)
    if None in texts:
        raise LoadError(f"{path}: entry {texts.index(None)} of {feature!r} is null, not a text")
    rows = {text: row for row, text in enumerate(texts) if text is not None}
    if len(rows) < len(texts):
        seen: set[str | None] = set()
        twice = next(text for text in texts if text in seen or seen.add(text))  # type: ignore[func-returns-value]  # add gives None
        raise LoadError(f"{path}: {twice!r:.80} of {feature!r} is there twice")
    if len(rows) > table_rows:
        raise LoadError(
            f"{path}: {len(rows)} texts, but the table of {feature!r} has {table_rows} rows"
        )
    return Vocabulary(rows)


def _texts(path: Path, feature: str) -> list[str | None]:
    """Return the only column of texts of the file at ``path``. Raises LoadError."""
    try:
        import pyarrow  # noqa: PLC0415  # an extra: only models with texts for ids need it
    except ModuleNotFoundError as error:
        raise LoadError(_NEEDS.format(path)) from error
    try:
        table = _read(path)
    except FileNotFoundError as error:
        raise LoadError(f"{path}: there is no such file, for the texts of {feature!r}") from error
    except (OSError, pyarrow.ArrowException) as error:
        raise LoadError(f"{path} is no Arrow or Parquet file: {error}") from error
    columns = [name for name in table.column_names if _is_text(table.schema.field(name).type)]
    if len(columns) != 1:
        raise LoadError(f"{path} has {len(columns)} columns of texts, not 1")
    texts: list[str | None] = table.column(columns[0]).to_pylist()
    return texts


def _read(path: Path) -> "pyarrow.Table":
    from pyarrow import ipc, parquet  # noqa: PLC0415

    with path.open("rb") as file:
        if file.read(len(_ARROW_MAGIC)) != _ARROW_MAGIC:
            return parquet.read_table(path)
    with ipc.open_file(path) as reader:
        return reader.read_all()


def _is_text(kind: "pyarrow.DataType") -> bool:
    from pyarrow import types  # noqa: PLC0415

    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind))
