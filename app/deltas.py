"""A watched folder of deltas: files are applied in the order of their names, each once.

A file is written under another name (or beside) and renamed into place. One that is refused holds
up those after it until it changes or goes; what is for a version that is not served is passed over.
"""

import asyncio
import json
import logging
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeAlias

from app.signatures import SIGNATURE_BYTES, SUFFIX, verify_file
from scheduler.engine import Engine
from scheduler.errors import Code, LoadError, ServingError
from scheduler.threads import Worker, run_in_thread
from transports import updates

logger = logging.getLogger(__name__)

POLL_S = 1.0
STATUS_FILE = "status.json"
SUFFIXES = (".arrow", ".arrows", ".json", ".parquet")
# Larger deltas are best cut into several.
MOST_BYTES = 1 << 30
# Told from another by these, of the file and of its signature, if it has one: number, size and time
# of the last change (ns).
_Identity: TypeAlias = tuple[int, ...]
_NOBODY: _Identity = ()


@dataclass(frozen=True, slots=True)
class FileOutcome:
    """What became of one file; ``outcome`` is applied, already_applied, passed_over or refused.

    ``model`` and ``version`` are what was changed; of what was not, what the file says.
    """

    file: str
    outcome: str
    detail: str
    model: str
    version: str
    sequence: int
    rows: int
    at_s: float


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    identity: _Identity
    names: tuple[str, str]  # of the model and version it is for, as the file has them
    served: object  # what it was applied to: a model that was loaded anew has none of it
    outcome: FileOutcome


class DeltaFolder:
    """Apply the files of ``folder`` to what ``engine`` serves.

    With ``artifact_keys``, a file of keys, one of them must have signed each: FILE.sig.
    """

    def __init__(self, engine: Engine, folder: Path, artifact_keys: str = "") -> None:
        self._engine = engine
        self._folder = folder
        self._artifact_keys = artifact_keys
        self._seen: dict[str, _Seen] = {}
        self._said = ""
        self._worker = Worker("delta")

    async def run(self) -> None:
        """Look for new files, for ever."""
        while True:
            try:
                await self.look()
            except Exception:  # supervision: what nobody foresaw in one file must not end the watch
                logger.exception("deltas: looking at %s failed", self._folder)
            await asyncio.sleep(POLL_S)

    async def look(self) -> None:
        """Apply what is new, in order, up to the first file that is refused."""
        try:
            found = await run_in_thread(lambda: dict(_files(self._folder)), "deltas")
        except OSError as error:
            self._complain(f"deltas: {error}")
            return
        before = self._outcomes()
        self._seen = {name: one for name, one in self._seen.items() if name in found}
        for name, identity in found.items():
            if not self._settled(name, identity):
                await self._take(name, identity)
            if self._seen[name].outcome.outcome == "refused":
                break
        if self._outcomes() != before:
            await run_in_thread(self._write_status, "deltas")

    def _outcomes(self) -> list[FileOutcome]:
        return [self._seen[name].outcome for name in sorted(self._seen)]

    def _settled(self, name: str, identity: _Identity) -> bool:
        """Return whether this very file has met what is served now."""
        seen = self._seen.get(name)
        return (
            seen is not None
            and seen.identity == identity
            and seen.served == self._served(seen.names, seen.outcome)
        )

    def _served(self, names: tuple[str, str], outcome: FileOutcome) -> object:
        """Return what ``outcome`` depends on besides the file: while it is equal, so is that."""
        try:
            taking = self._engine.updates(*names)
        except ServingError:
            return tuple((spec.name, spec.version) for spec in self._engine.specs())
        return taking, taking.sequence if outcome.outcome == "refused" else None

    async def _take(self, name: str, identity: _Identity) -> None:
        outcome = FileOutcome(name, "refused", "", "", "", 0, 0, time.time())
        names = ("", "")
        try:
            body = await run_in_thread(lambda: self._read(name), "deltas")
            is_json = name.endswith(".json")
            delta = await updates.decode(self._engine, [body], self._worker, is_json=is_json)
            names = (delta.model, delta.version)
            outcome = replace(outcome, model=delta.model, version=delta.version)
            applied = await updates.apply(self._engine, delta)
        except ServingError as error:
            passed = error.code is Code.MODEL_NOT_FOUND
            if error.code is Code.UNAVAILABLE:
                identity = _NOBODY  # no fault of the file's: tried again
            outcome = replace(
                outcome, outcome="passed_over" if passed else "refused", detail=error.detail
            )
            logger.warning("delta %s: %s: %s", name, outcome.outcome, error.detail)
        except (OSError, LoadError) as error:
            outcome = replace(outcome, detail=str(error))
            logger.warning("delta %s: %s", name, error)
        else:
            rows = applied.rows if applied.outcome == "applied" else 0
            outcome = replace(
                outcome, outcome=applied.outcome, model=applied.model, version=applied.version,
                sequence=applied.sequence, rows=rows,
            )  # fmt: skip
            logger.info(
                "delta %s: %s, %d rows in %.3f s; %s version %s is at %d", name, applied.outcome,
                rows, applied.seconds, applied.model, applied.version, applied.sequence,
            )  # fmt: skip
        self._seen[name] = _Seen(identity, names, self._served(names, outcome), outcome)

    def _read(self, name: str) -> bytes:
        """Return a file that somebody trusted has signed, if that is asked for."""
        body = _read(self._folder / name)
        if self._artifact_keys:
            verify_file(name, body, _signature(self._folder / name), self._artifact_keys)
        return body

    def _write_status(self) -> None:
        document = json.dumps({"files": [asdict(one) for one in self._outcomes()]}, indent=2)
        beside = self._folder / f".{STATUS_FILE}.new"
        try:
            beside.write_text(document + "\n", encoding="utf-8")
            beside.rename(self._folder / STATUS_FILE)
        except OSError as error:
            self._complain(f"deltas: the status cannot be written: {error}")

    def _complain(self, what: str) -> None:
        if what != self._said:
            logger.error("%s", what)
        self._said = what


def _files(folder: Path) -> Iterator[tuple[str, _Identity]]:
    """Yield the deltas of ``folder`` in the order of their names."""
    for path in sorted(folder.iterdir()):
        hidden = path.name.startswith(".") or path.name == STATUS_FILE
        if path.suffix in SUFFIXES and not hidden and path.is_file():
            yield path.name, (*_marks(path), *_marks(path.with_name(path.name + SUFFIX)))


def _signature(path: Path) -> bytes:
    """Return what lies beside a delta, b"" for nothing."""
    beside = path.with_name(path.name + SUFFIX)
    if not beside.is_file():
        return b""
    with beside.open("rb") as file:
        return file.read(SIGNATURE_BYTES + 1)


def _marks(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except FileNotFoundError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        body = file.read(MOST_BYTES + 1)
    if len(body) > MOST_BYTES:
        raise ServingError(
            Code.PAYLOAD_TOO_LARGE,
            f"the file has more than {MOST_BYTES} bytes; cut it into several",
        )
    return body
