"""A repository in a folder of this machine."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from app.repository.listing import (
    CONFIG_FILE,
    CONFIG_SIGNATURE,
    MAX_CONFIG_BYTES,
    MAX_FILES,
    MAX_SIGNATURE_BYTES,
    FoundModel,
    FoundVersion,
    Listing,
    PlaceError,
    is_hidden,
    is_version,
    layout_problem,
    name_problem,
    signature_of,
    told,
)

_MAX_DEPTH = 8
_UNREADABLE = (OSError, RuntimeError)  # the latter for links that lead in a circle


class LocalPlace:
    """Read the repository below ``root``; links that lead out of it are refused."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def url(self) -> str:
        """The folder."""
        return str(self._root)

    def scan(self) -> Listing:
        """Return everything that is there. Raises PlaceError."""
        try:
            root = self._root.resolve(strict=True)
            with os.scandir(root) as entries:
                names = sorted(entry.name for entry in entries if _is_folder(entry))
        except _UNREADABLE as error:
            raise PlaceError(str(error)) from error
        return {told(name): _model(root, root / name) for name in names if not is_hidden(name)}

    def fetch(self, model: str, version: str, signature: str) -> Path:
        """Return the version's own folder."""
        del signature
        return self._root.resolve() / model / version

    def unchanged(self, model: str, version: str, signature: str) -> bool:
        """Return whether the files still are those of ``signature``."""
        root = self._root.resolve()
        return _version(root, root / model / version) == FoundVersion(signature)

    def release(self, model: str, version: str, signature: str) -> None:
        """Leave the folder alone: it is the repository's."""


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle, say: no reason to read none of the others
        return False


def _model(root: Path, folder: Path) -> FoundModel:
    problem = name_problem(folder.name)
    if problem:
        return FoundModel(problem=problem)
    try:
        _check_inside(root, folder)
        entries = os.listdir(folder)
        problem = layout_problem(told(folder.name), entries)
        if problem:
            return FoundModel(problem=problem)
        names = [name for name in entries if is_version(name)]
        versions = {
            name: _version(root, folder / name) for name in names if (folder / name).is_dir()
        }
        config = _read(root, folder / CONFIG_FILE, MAX_CONFIG_BYTES).decode("utf-8")
        signature = _read(root, folder / CONFIG_SIGNATURE, MAX_SIGNATURE_BYTES)
        return FoundModel(config, versions, config_signature=signature)
    except (*_UNREADABLE, UnicodeDecodeError, PlaceError) as error:
        return FoundModel(problem=str(error))


def _read(root: Path, file: Path, limit_bytes: int) -> bytes:
    """Return what ``file`` has, b"" if there is none."""
    if not file.exists():
        return b""
    _check_inside(root, file)
    if not file.is_file():
        raise PlaceError(f"{file.name} is no file")
    with file.open("rb") as opened:
        data = opened.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise PlaceError(f"{file.name} has more than {limit_bytes} bytes")
    return data


def _version(root: Path, folder: Path) -> FoundVersion:
    try:
        files = []
        for each in _files(root, folder, _MAX_DEPTH):
            files.append(each)
            if len(files) > MAX_FILES:
                raise PlaceError(f"more than {MAX_FILES} files")
        return FoundVersion(signature_of(files))
    except (*_UNREADABLE, PlaceError) as error:
        return FoundVersion("", problem=str(error))


def _files(root: Path, folder: Path, depth: int) -> Iterator[tuple[object, ...]]:
    """Yield a mark of every file below ``folder``, those that are still being written too."""
    _check_inside(root, folder)
    if not depth:
        raise PlaceError(f"{folder.name} lies more than {_MAX_DEPTH} folders deep")
    with os.scandir(folder) as opened:
        entries = list(opened)
    for entry in entries:
        path = folder / entry.name
        if entry.is_dir():
            yield from _files(root, path, depth - 1)
        else:
            _check_inside(root, path)
            found = path.stat()
            if not stat.S_ISREG(found.st_mode):  # reading a pipe would wait for ever
                raise PlaceError(f"{path.relative_to(root)} is no file")
            yield str(path), found.st_size, found.st_mtime_ns, found.st_ino


def _check_inside(root: Path, path: Path) -> None:
    if not path.resolve().is_relative_to(root):
        raise PlaceError(f"{path.relative_to(root)} leads out of the repository")
