"""The distinct requests of a run in a file, which every generator process maps into its memory."""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loadtest.encodings import Encoding, decode, encode
from loadtest.workload import Mix, ModelShape, draws
from scheduler.backend import Backend
from scheduler.types import Array, Batch, InferRequest

_BODIES, _ENDS, _ROWS = "bodies.bin", "ends.npy", "rows.npy"
_SCORES, _NAMES = "scores.npy", "outputs.txt"


@dataclass(frozen=True, slots=True)
class Order:
    """What to make: ``count`` requests at most, and ``most_bytes`` of them at most."""

    mix: Mix
    encoding: Encoding
    model: str
    count: int
    most_bytes: int
    seed: int


class Bodies:
    """Bodies by number, read from the file that ``write`` made."""

    def __init__(self, folder: Path) -> None:
        self.rows: Array = np.load(folder / _ROWS)
        self._ends = [0, *np.load(folder / _ENDS).tolist()]
        with (folder / _BODIES).open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> bytes:
        return self._bytes[self._ends[number] : self._ends[number + 1]]


def write(folder: Path, shape: ModelShape, order: Order, backend: Backend | None) -> int:
    """Write requests, and with ``backend`` their scores, into ``folder``; return how many.

    Fewer than were ordered where they would take more than their bytes; one at least.
    """
    ends: list[int] = []
    sizes: list[int] = []
    scores: list[Array] = []
    names: list[str] = []
    written = 0
    with (folder / _BODIES).open("wb") as file:
        for rows, inputs in draws(shape, order.mix, order.count, order.seed):
            body = encode(order.encoding, order.model, shape.features, inputs, order.mix.context)
            if ends and written + len(body) > order.most_bytes:
                break
            written += file.write(body)
            ends.append(written)
            sizes.append(rows)
            if backend is not None:
                names, part = _scores(backend, rows, inputs)
                scores.append(part)
    np.save(folder / _ENDS, np.array(ends))
    np.save(folder / _ROWS, np.array(sizes))
    if backend is not None:
        np.save(folder / _SCORES, np.concatenate(scores, axis=1))
        (folder / _NAMES).write_text("\n".join(names), encoding="utf-8")
    return len(ends)


def _scores(backend: Backend, rows: int, inputs: dict[str, Array]) -> tuple[list[str], Array]:
    outputs = backend.prepare(Batch((InferRequest("", rows, inputs),)))()
    names = sorted(outputs)
    flat = [np.asarray(outputs[name], np.float32).reshape(rows) for name in names]
    return names, np.stack(flat)


class Golden:
    """The scores that ``write`` computed, one request at a time."""

    def __init__(self, folder: Path, encoding: Encoding, tolerance: float) -> None:
        self._encoding: Encoding = encoding
        self._tolerance = tolerance
        self._names = (folder / _NAMES).read_text(encoding="utf-8").split("\n")
        self._scores = np.load(folder / _SCORES, mmap_mode="r")
        self._ends = [0, *np.cumsum(np.load(folder / _ROWS)).tolist()]

    def check(self, number: int, body: bytes) -> bool:
        """Say whether ``body`` answers request ``number``: every output, row by row."""
        try:
            answer = decode(self._encoding, body)
        except ValueError:
            return False
        expected = self._scores[:, self._ends[number] : self._ends[number + 1]]
        return sorted(answer) == self._names and all(
            self._close(answer[name], row) for name, row in self._rows(expected)
        )

    def _rows(self, expected: Array) -> Iterator[tuple[str, Array]]:
        return zip(self._names, expected, strict=True)

    def _close(self, got: Array, expected: Array) -> bool:
        # A nan is never close.
        return got.shape == expected.shape and bool(
            np.all(np.abs(np.subtract(got, expected)) <= self._tolerance)
        )
