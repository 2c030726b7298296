"""The artifact's own answers to the probes: recorded at export, or asked in a process of its own.

PyTorch's loader holds Python's lock while it reads the file, a quarter of a second for 166 MB, in
which no request of any model would move. So the file is loaded there, not where others are served.
"""

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from backends.torch_dlrm.probes import Probe, digest
from scheduler.errors import LoadError
from scheduler.types import Array

ANSWERS_FILE = "answers.npz"
_TEXTS = ("sha256", "probes", "libraries", "output", "device")
_TIMEOUT_S = 600.0
_MODULE = "backends.torch_dlrm.ask"
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
            and rows == [len(probe.inputs["float_features"]) for probe in probes]
        )


def write_answers(path: Path, answers: Answers) -> None:
    """Write ``answers`` to ``path``."""
    np.savez(
        path,
        allow_pickle=False,
        texts=np.array([getattr(answers, name) for name in _TEXTS]),
        feature_names=np.array(answers.feature_names, np.str_),
        rows=np.array([len(scores) for scores in answers.scores]),
        scores=np.concatenate(answers.scores),
    )


def read_answers(path: Path) -> Answers | None:
    """Return the answers recorded at ``path``, or None if there are none that can be read."""
    try:
        with path.open("rb") as raw, np.load(raw) as file:
            texts = dict(zip(_TEXTS, file["texts"].tolist(), strict=True))
            scores = np.split(file["scores"], np.cumsum(file["rows"])[:-1])
            names = tuple(file["feature_names"].tolist())
    except (OSError, KeyError, ValueError, TypeError, EOFError, zipfile.BadZipFile):
        return None
    return Answers(**texts, scores=tuple(scores), feature_names=names)


def ask(model_file: Path) -> Answers:
    """Have another process load the artifact and answer the probes; takes some seconds.

    Raises LoadError for a file that is no model, NoAnswerError for one that cannot answer.
    """
    with tempfile.TemporaryDirectory(prefix="narsil-") as folder:
        path = Path(folder) / ANSWERS_FILE
        # -P: the folder we were started in may hold anything, also modules of these names.
        command = [sys.executable, "-P", "-m", _MODULE, str(model_file.resolve()), str(path)]
        try:
            done = subprocess.run(  # noqa: S603 - our own module, no shell
                command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NoAnswerError(f"the process that checks it did not finish: {error}") from error
        said = done.stderr.strip().rpartition("\n")[2]
        if done.returncode == REFUSED:
            raise LoadError(said)
        answers = read_answers(path) if done.returncode == 0 else None
    if answers is None:
        raise NoAnswerError(f"the artifact did not answer the probes: {said or done.returncode}")
    return answers
