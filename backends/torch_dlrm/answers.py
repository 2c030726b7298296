"""The artifact's own answers to the probes: recorded at export, or asked in a process of its own.

PyTorch's loader holds Python's lock while it reads the file, a quarter of a second for 166 MB, in
which no request of any model would move. So the file is loaded there, not where others are served.
"""

import io
import logging
import re
import sys
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from backends.dlrm.gather import DENSE
from backends.torch_dlrm.bounded import run_bounded
from backends.torch_dlrm.probes import Probe, digest
from scheduler.ended import how_ended
from scheduler.errors import LoadError
from scheduler.types import Array

_log = logging.getLogger(__name__)

ANSWERS_FILE = "answers.npz"
_TEXTS = ("sha256", "probes", "libraries", "output", "device")
# The answers to all probes take about 6 KB; more names of features make them longer.
_MOST_BYTES = 16 << 20
_DEVICE = re.compile(r"(cpu|cuda(:\d{1,2})?)?")
_TIMEOUT_S = 600.0
_MOST_SAID = 2000
# What NumPy's reader raises on bytes that are no such file; zipfile and zlib are below it.
_DAMAGED = (
    OSError, LookupError, ValueError, TypeError, EOFError, RuntimeError, MemoryError, SyntaxError,
    NotImplementedError, OverflowError, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
_MODULE = "backends.torch_dlrm.child"
# Exit status of ``ask``: the file is no model; anything else is a failure of the asking.
REFUSED = 3


class NoAnswerError(Exception):
    """Say why the artifact's own answers are not to be had."""


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """What one artifact answers to probes with the hash ``probes``: one array a probe.

    ``libraries`` computed them. ``device`` and ``feature_names`` are what its graph says; the
    latter may be empty.
    """

    sha256: str
    probes: str
    libraries: str
    output: str
    device: str
    scores: tuple[Array, ...]
    feature_names: tuple[str, ...]

    def fits(self, sha256: str, probes: Sequence[Probe], libraries: str) -> bool:
        """Return whether that file answers so to those probes with those libraries."""
        rows = [len(scores) for scores in self.scores]
        return (
            self.sha256 == sha256
            and self.probes == digest(probes)
            and self.libraries == libraries
            and rows == [len(probe.inputs[DENSE]) for probe in probes]
            and len(set(self.feature_names)) in {0, probes[-1].features}
        )


def write_answers(to: Path | BinaryIO, answers: Answers) -> None:
    """Write ``answers`` to a path or an open file."""
    np.savez(
        to,
        allow_pickle=False,
        texts=np.array([getattr(answers, name) for name in _TEXTS]),
        feature_names=np.array(answers.feature_names, np.str_),
        rows=np.array([len(scores) for scores in answers.scores]),
        scores=np.concatenate(answers.scores),
    )


def read_answers(path: Path) -> Answers | None:
    """Return the answers recorded at ``path``, or None if there are none that can be read.

    Only a damaged file is worth a warning.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        return _parse(data)
    except FileNotFoundError:
        return None
    except _DAMAGED as error:
        _log.warning("%s is ignored: %s: %.200s", path, type(error).__name__, error)
        return None


def _parse(data: bytes) -> Answers:
    """Return the answers that ``data`` holds. Raises one of ``_DAMAGED``."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        total = sum(info.file_size for info in archive.infolist())
    if max(total, len(data)) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES} bytes")
    with np.load(io.BytesIO(data)) as file:
        texts, names = _vector(file["texts"], "U"), _vector(file["feature_names"], "U")
        rows, scores = _vector(file["rows"], "iu"), _vector(file["scores"], "f")
    if (rows < 0).any() or rows.sum() != scores.size or scores.dtype != np.float32:
        raise ValueError("its scores are not those of its rows")
    parts = tuple(np.split(scores, np.cumsum(rows)[:-1]))
    fields: dict[str, str] = dict(zip(_TEXTS, texts.tolist(), strict=True))
    if not _DEVICE.fullmatch(fields["device"]) or not fields["output"]:
        raise ValueError("it names no device or no output")
    return Answers(**fields, scores=parts, feature_names=tuple(names.tolist()))


def _vector(array: Array, kinds: str) -> npt.NDArray[Any]:
    if array.ndim != 1 or array.dtype.kind not in kinds:
        raise ValueError(f"it holds {array.dtype} of shape {array.shape} where a list must be")
    return array


def ask(model_file: Path) -> Answers:
    """Have another process load the artifact and answer the probes; takes some seconds.

    Raises LoadError for a file that is no model, NoAnswerError for one that cannot answer.
    """
    # -P: the folder we were started in may hold anything, also modules of these names.
    command = [sys.executable, "-P", "-m", _MODULE, str(model_file.resolve())]
    try:
        done = run_bounded(command, _TIMEOUT_S, _MOST_BYTES + 1)
    except OSError as error:
        raise NoAnswerError(f"the process that checks it did not finish: {error}") from error
    said = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2][-_MOST_SAID:]
    if done.returncode == REFUSED:
        raise LoadError(said)
    if done.returncode:
        why = said or f"the process that loaded it {how_ended(done.returncode)}"
        raise NoAnswerError(f"the artifact did not answer the probes: {why}")
    try:
        return _parse(done.stdout)
    except _DAMAGED as error:
        raise NoAnswerError(f"what answers the probes wrote cannot be read: {error}") from error
